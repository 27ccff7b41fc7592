"""The contestants: each a short adapter that says how durable it is. What they have to do is in ``workloads``."""
