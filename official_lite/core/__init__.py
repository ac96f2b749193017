"""From a config to a task, a trainer and a run. Nothing is imported here eagerly."""
