"""Finished results as figures and tables: they are read and shown here, nothing is computed."""
