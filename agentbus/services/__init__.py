"""What is done alongside the agents, on top of the engine: the bus hands these services out."""
