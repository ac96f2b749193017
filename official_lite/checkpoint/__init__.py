"""What a run saves besides its variables, and how weights come in from elsewhere."""
