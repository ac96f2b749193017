"""Clicks in Criteo's format: data, a generator with a known best possible AUC, a shared task."""
