"""Classification of ImageNet by a residual network: `vision/resnet_imagenet`."""
