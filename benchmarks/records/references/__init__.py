"""Reference programs in other frameworks, each a script with one recipe."""
