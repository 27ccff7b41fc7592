"""Handlers of requests, one module per subject. They check nothing that the ``api`` floor checks."""
