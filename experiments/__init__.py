"""Registered experiments, each a folder of its own: `<domain>/<name>`."""
