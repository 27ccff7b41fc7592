"""Registries of agents that were cut off, as the bus keeps them and as one JSON file for each agent."""
