"""A GPT on the characters of a text file: `language/char_gpt`."""
