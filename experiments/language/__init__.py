"""Text: language models that predict what comes next, and one that fills in what is missing."""
