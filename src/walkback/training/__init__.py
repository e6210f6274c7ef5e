"""Training runs and what they leave behind."""
