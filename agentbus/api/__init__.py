"""The asynchronous API that users hold."""
