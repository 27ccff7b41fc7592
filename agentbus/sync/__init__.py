"""The API without an event loop, for the command line and scripts."""
