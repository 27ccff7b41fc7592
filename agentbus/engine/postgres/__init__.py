"""How statements reach PostgreSQL."""
