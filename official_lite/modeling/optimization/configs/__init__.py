"""Configs of optimizers and learning rates, importable without TensorFlow."""

__all__: list[str] = []
