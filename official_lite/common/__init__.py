"""Shared foundations: errors, names, flags, and the choice of a distribution strategy.

This package imports nothing itself, so ``from official_lite.common import errors`` is cheap.
"""
