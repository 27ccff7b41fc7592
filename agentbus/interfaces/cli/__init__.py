"""The command line: ``agentbus`` on the PATH, for people, for scripts, for LLM agents."""
