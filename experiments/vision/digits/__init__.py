"""Handwritten digits, 8×8 pixels: `vision/digits_cnn` and `vision/digits_mlp`."""
