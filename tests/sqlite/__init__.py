"""What only the SQLite engine has: files, locks, file systems."""
