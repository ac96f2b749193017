"""A measurement of the tests: whether they notice deliberate errors in the package."""
