"""Trainings that are only to be tried, for `tools tune`."""
