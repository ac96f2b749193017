"""BERT, trained from random weights: `language/bert_pretraining`."""
