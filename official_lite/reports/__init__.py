"""HTML reports about runs and studies, built from the files in their directories.

A report is one self-contained HTML file: it needs no network, server or browser library. `python -m
official_lite.tools report` writes it.
"""
