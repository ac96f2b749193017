"""Experiments on text: models that predict the next token, and one that predicts masked words."""
