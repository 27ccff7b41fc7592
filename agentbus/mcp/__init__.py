"""The MCP server: a protocol core without I/O, the tools and resources of the bus, and two transports."""
