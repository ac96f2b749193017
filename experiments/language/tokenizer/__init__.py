"""Tokenization into words and subwords with the library `tokenizers` (the extra `language`)."""
