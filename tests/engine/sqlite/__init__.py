"""Tests of the SQLite engine only: files, locks, file systems."""
