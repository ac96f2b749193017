"""Two targets for one network on handwritten digits: `vision/digits_multitask`."""
