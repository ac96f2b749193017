"""The infrastructure of a run: its lock, record and log, and how it starts and ends."""
