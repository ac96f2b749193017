"""The reference programs, each a script of its own that does not import this project."""
