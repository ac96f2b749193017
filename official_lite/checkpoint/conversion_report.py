"""What came of reading weights into a model: what found its place, and what did not."""

import dataclasses
from collections.abc import Iterable

__all__ = ["ConversionReport", "Leftover", "Match", "Shape"]

Shape = tuple[int, ...]

_SHOWN_CANDIDATES = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Match:
    """A variable of the model and the tensor of the checkpoint that is meant for it.

    Attributes:
        saved_name: The name that the checkpoint has for the tensor, if it says more than the key.
        is_by_position: Whether nothing but their places in the model says that they belong
            together.
    """

    variable: str
    variable_shape: Shape
    key: str
    key_shape: Shape
    saved_name: str = ""
    is_by_position: bool = False

    def __str__(self) -> str:
        text = f"{self.variable} {list(self.variable_shape)} <- {self.key}"
        if self.variable_shape != self.key_shape:
            text += f" {list(self.key_shape)}"
        return f"{text} ({self.saved_name})" if self.saved_name else text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leftover:
    """A variable without its tensor, or a tensor without its variable.

    Attributes:
        candidates: Tensors that might be meant: all that claim an ambiguous variable, or those
            that no variable took and that have the shape of a missing one.
    """

    name: str
    shape: Shape
    candidates: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"{self.name} {list(self.shape)}"
        if not self.candidates:
            return text
        more = ", …" if len(self.candidates) > _SHOWN_CANDIDATES else ""
        return f"{text} (might be {', '.join(self.candidates[:_SHOWN_CANDIDATES])}{more})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConversionReport:
    """Every variable of the model and every tensor of the checkpoint, each in one of five lists.

    Attributes:
        checkpoint: The prefix of the checkpoint files.
        matched: Pairs of equal shape; only these are assigned.
        mismatched: Pairs that belong together but differ in shape.
        ambiguous: Variables with more than one tensor that may be meant.
        missing: Variables that no tensor is meant for.
        unexpected: Tensors of the model in the checkpoint that no variable took.
    """

    checkpoint: str
    matched: tuple[Match, ...] = ()
    mismatched: tuple[Match, ...] = ()
    ambiguous: tuple[Leftover, ...] = ()
    missing: tuple[Leftover, ...] = ()
    unexpected: tuple[Leftover, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether every variable was filled and every tensor was used."""
        return not (self.mismatched or self.ambiguous or self.missing or self.unexpected)

    def __str__(self) -> str:
        lines = [f"{self.checkpoint}: {len(self.matched)} variables matched"]
        by_position = [match for match in self.matched if match.is_by_position]
        lines += _section("of these, by position", by_position)
        lines += _section("of another shape", self.mismatched)
        lines += _section("ambiguous", self.ambiguous)
        lines += _section("missing from the checkpoint", self.missing)
        lines += _section("unexpected in the checkpoint", self.unexpected)
        return "\n".join(lines)


def _section(title: str, rows: Iterable[object]) -> list[str]:
    lines = [f"    {row}" for row in rows]
    return [f"  {title} ({len(lines)}):", *lines] if lines else []
