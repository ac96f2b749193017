"""Benchmarks of speed, memory and latency against other frameworks; see `README.md`."""
