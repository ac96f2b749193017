"""The time until an import, a help text, an error message and the first step."""
