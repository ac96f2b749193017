"""Compression of models by config: `task.compression`."""
