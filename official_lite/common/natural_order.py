"""The order of names in which numbers count by their value."""

import re

__all__ = ["sort_key"]


def sort_key(name: str) -> list[str | int]:
    """Return a sort key that sorts `output_10` after `output_9`."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]
