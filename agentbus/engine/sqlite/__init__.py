"""The engine for one SQLite file."""
