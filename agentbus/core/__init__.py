"""Leaves: formats, names, limits, clocks, files and processes. They import nothing of the package but the errors."""
