"""The embedded engine: one SQLite file, a lock file and doorbells beside it, no server."""
