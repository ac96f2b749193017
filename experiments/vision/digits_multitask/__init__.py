"""One network with two targets on handwritten digits: `vision/digits_multitask`."""
