"""Command-line tools besides `train.py`: `python -m official_lite.tools COMMAND …`.

They inspect runs from outside or start them; no run depends on them.
"""
