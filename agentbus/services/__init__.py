"""Loops that run alongside agents."""
