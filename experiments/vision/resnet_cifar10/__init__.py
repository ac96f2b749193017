"""The residual networks designed for CIFAR-10: `vision/resnet_cifar10`."""
