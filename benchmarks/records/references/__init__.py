"""Standalone programs that train the recipes of experiments in other libraries."""
