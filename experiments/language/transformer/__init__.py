"""The transformer layers of GPT and BERT."""
