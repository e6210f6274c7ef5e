"""The version of the package, which run records and pages name."""

__version__ = "0.1.0"
