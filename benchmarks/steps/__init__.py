"""Steps per second of several frameworks on four models."""
