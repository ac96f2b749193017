"""GPT-2, trained from random weights: `language/gpt2`."""
