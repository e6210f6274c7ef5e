"""One pass of a network, read without leaving a trace. Anatomy and batch -> Trace."""
