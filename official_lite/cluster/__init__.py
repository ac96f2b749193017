"""Several processes as one run: who takes part, and whether all can be reached."""
