"""Experiments on recommendation: predicting clicks and choosing items to show."""
