"""Experiments on sequences of numbers."""
