"""Command-line tools: `official-lite COMMAND …` or `python -m official_lite.tools COMMAND …`.

The tools start runs or inspect them from outside; no run depends on them.
"""
