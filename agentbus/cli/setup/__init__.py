"""Installation into coding agents: hooks, MCP server, skill and permissions in the configuration of each client."""
