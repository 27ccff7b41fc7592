"""The queue benchmark on PostgreSQL: contestants on one server, which is ours for the time of the run."""
