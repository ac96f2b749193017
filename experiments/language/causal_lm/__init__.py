"""Models that predict the next token, small enough to be read: what the GPTs here share."""
