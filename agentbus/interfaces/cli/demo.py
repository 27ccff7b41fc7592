"""``agentbus demo``."""
