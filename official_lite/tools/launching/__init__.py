"""The processes of a cluster on this machine, which `tools launch` starts."""
