"""Step time by number of workers and size of gradients, beside a model of it."""
