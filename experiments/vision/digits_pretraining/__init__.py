"""Digits with few labels: `vision/digits_pretraining` and `vision/digits_few_labels`."""
