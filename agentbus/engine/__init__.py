"""How statements reach a database. An engine drives operations; it decides nothing about the bus itself."""
