"""Words and parts of words as tokens, by the library `tokenizers` (the extra `language`)."""
