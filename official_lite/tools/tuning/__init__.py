"""Trial trainings for `tools tune`."""
