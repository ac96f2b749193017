"""Processes of a local cluster, which `tools launch` starts."""
