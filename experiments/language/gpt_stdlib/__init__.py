"""A GPT on the bytes of Python's standard library: `language/gpt_stdlib`."""
