"""Step time by number of workers and size of gradients, compared with a cost model."""
