"""The papers' evidence beside ours: tables, figures and the page. Reads finished runs only."""
