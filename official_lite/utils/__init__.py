"""Here only because the Model Garden's path is: see `official_lite.utils.testing`."""
