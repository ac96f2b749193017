"""The model of a run, written in a format and compared with itself, for `tools export`."""
