"""The command line, run as it is installed."""
