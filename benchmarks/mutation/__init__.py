"""Measures the tests: whether they notice deliberate errors in the package."""
