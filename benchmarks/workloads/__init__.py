"""The workloads of the benchmarks; ``contestants`` has the systems that run them."""
