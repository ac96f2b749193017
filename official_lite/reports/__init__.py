"""Pages about runs and studies, from what they have left in their directories.

A page is one HTML file that needs nothing else: no network, no server, no library in the browser.
`python -m official_lite.tools report` writes it.
"""
