"""Export of a run's model with verification, for `tools export`."""
