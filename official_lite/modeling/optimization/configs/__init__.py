"""Configs of optimizers and learning rates, importable without TensorFlow."""
