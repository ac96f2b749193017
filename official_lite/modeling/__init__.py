"""Building blocks of tasks and models: configs, optimizers and numerics."""
