"""Runs of several processes: the members of the cluster, and whether they can be reached."""
