"""Registered experiments, each in its own package: `<domain>/<name>`."""
