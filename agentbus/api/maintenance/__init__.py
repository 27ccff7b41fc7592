"""Maintenance of a bus: retention, archives, export, copy, backup, health checks."""
