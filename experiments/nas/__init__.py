"""Architecture search on small data."""
