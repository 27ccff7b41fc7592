"""Registries of agents: the bus, and one JSON file for each agent."""
