"""What GPT and BERT are made of."""
