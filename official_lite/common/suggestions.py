"""Suggestions of known names for an unknown name."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], *, count: int = 3) -> list[str]:
    """Return the known names most similar to `name`, nearest first; empty if none is close."""
    names = sorted({str(candidate) for candidate in known})
    matches = difflib.get_close_matches(name, names, n=count, cutoff=0.6)
    if matches:
        return matches
    lowered = {candidate.lower(): candidate for candidate in names}
    return [lowered[m] for m in difflib.get_close_matches(name.lower(), lowered, n=count)]


def did_you_mean(name: str, known: Iterable[str], *, count: int = 3) -> str:
    """Return a sentence for an error message with the nearest names, or else the known names.

    At most 20 known names are listed. The result is empty if no names are known.
    """
    names = sorted({str(candidate) for candidate in known})
    matches = nearest(name, names, count=count)
    if matches:
        return "Did you mean " + " or ".join(f"`{match}`" for match in matches) + "?"
    if not names:
        return ""
    shown = ", ".join(f"`{candidate}`" for candidate in names[:20])
    return f"Known: {shown}{', …' if len(names) > 20 else ''}."
