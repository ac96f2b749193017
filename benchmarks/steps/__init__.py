"""Steps a second on four models, of everyone who can train them."""
