"""GPT-2, from its first weights on: `language/gpt2`."""
