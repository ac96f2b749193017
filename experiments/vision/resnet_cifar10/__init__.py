"""CIFAR-10 and the residual networks that were made for it: `vision/resnet_cifar10`."""
