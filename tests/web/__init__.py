"""Tests of the HTTP API: a real server on both engines."""
