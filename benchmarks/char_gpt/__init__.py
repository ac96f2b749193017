"""`language/char_gpt` from the command to the end, against hand-written PyTorch."""
