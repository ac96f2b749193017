"""The infrastructure of a run: preflight checks, lock, record, signals and recovery."""
