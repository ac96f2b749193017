"""Utilities at the same path as in the Model Garden; see `official_lite.utils.testing`."""
