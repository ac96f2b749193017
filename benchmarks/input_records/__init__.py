"""Records a second, read from files by everyone who can read them, and gathered from memory."""
