"""What only PostgreSQL promises, or can go wrong with."""
