"""The parts that all GPT experiments share: models that predict the next token."""
