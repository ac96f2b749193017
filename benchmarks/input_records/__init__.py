"""Records per second of several readers, from files and from memory."""
