"""Files that are read and written: reports, and numbers logged by other frameworks."""
