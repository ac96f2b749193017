"""MovieLens-100k: `recommendation/ml100k_bpr`, `ml100k_two_tower` and `ml100k_sasrec`."""
