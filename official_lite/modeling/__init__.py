"""Configs, optimizers and numerics that tasks and models are made of."""
