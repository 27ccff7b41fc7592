"""Properties and faults of PostgreSQL alone."""
