"""Execution modes of steps: graph, XLA and parameter servers, and the choice between them."""
