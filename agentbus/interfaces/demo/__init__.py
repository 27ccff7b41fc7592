"""The story that ``agentbus demo`` tells, with real processes and nothing staged."""
