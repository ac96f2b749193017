"""How long one waits: for an import, for help, to hear of a mistake, for the first step."""
