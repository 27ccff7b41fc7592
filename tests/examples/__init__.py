"""The programs of ``examples/``."""
