"""Adapters: small trainable additions to a model whose own weights stay as they are."""
