"""`agentbus run`: a command as a resident agent."""
