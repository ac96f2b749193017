"""Commands beside `train.py`: `python -m official_lite.tools COMMAND …`.

They look at runs from outside, or start them; none is needed by a run.
"""
