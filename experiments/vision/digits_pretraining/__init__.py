"""Digits of which few have labels: `vision/digits_pretraining` and `vision/digits_few_labels`."""
