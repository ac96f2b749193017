"""Experiments, tasks, trainers and training runs. This package imports nothing eagerly."""
