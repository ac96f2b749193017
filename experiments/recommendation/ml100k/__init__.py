"""Recommendations on MovieLens-100k: `recommendation/ml100k_bpr`."""
