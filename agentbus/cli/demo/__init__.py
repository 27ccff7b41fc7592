"""`agentbus demo`."""
