"""Predictions of a model in files: the formats, and the directory of shards."""
