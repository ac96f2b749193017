"""Criteo's clicks: the format, a generator whose best possible AUC is known, what tasks share."""
