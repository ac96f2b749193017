"""Answers an unknown name with the nearest known ones."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], *, count: int = 3) -> list[str]:
    """The known names most like `name`, the nearest first; empty when none is close."""
    names = sorted({str(candidate) for candidate in known})
    matches = difflib.get_close_matches(name, names, n=count, cutoff=0.6)
    if matches:
        return matches
    lowered = {candidate.lower(): candidate for candidate in names}
    return [lowered[m] for m in difflib.get_close_matches(name.lower(), lowered, n=count)]


def did_you_mean(name: str, known: Iterable[str], *, count: int = 3) -> str:
    """A sentence that ends an error message: the nearest names, or all of them if there are few.

    The empty string when nothing is known at all.
    """
    names = sorted({str(candidate) for candidate in known})
    matches = nearest(name, names, count=count)
    if matches:
        return "Did you mean " + " or ".join(f"`{match}`" for match in matches) + "?"
    if not names:
        return ""
    shown = ", ".join(f"`{candidate}`" for candidate in names[:20])
    return f"Known: {shown}{', …' if len(names) > 20 else ''}."
