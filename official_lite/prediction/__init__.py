"""Predictions of a model in files: their config, the formats, and the directory of shards."""
