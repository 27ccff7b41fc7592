"""The compared systems, each a short adapter with its durability; ``workloads`` has the measurements."""
