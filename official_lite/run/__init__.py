"""What surrounds a training: checks before it, its lock, its record, signals, and recovery."""
