"""Fashion-MNIST, 28×28 pixels: `vision/fashion_mnist` and `vision/fashion_mnist_best`."""
