"""BERT, from its first weights on: `language/bert_pretraining`."""
