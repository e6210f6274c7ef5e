"""What a person or a program is told: reports as text, tables, pages, and their file formats."""
