"""`language/char_gpt` from the command to the end, beside the same by hand in PyTorch."""
