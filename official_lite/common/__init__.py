"""What every layer shares: errors, names, flags, and the choice of a distribution strategy.

Nothing is imported here, so that ``from official_lite.common import errors`` costs nothing.
"""
