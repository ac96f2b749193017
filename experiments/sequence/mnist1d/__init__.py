"""MNIST-1D, digits as curves of 40 points: `sequence/mnist1d`."""
