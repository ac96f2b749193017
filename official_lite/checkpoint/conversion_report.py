"""The result of reading weights into a model: what was matched and what was not."""

import dataclasses
from collections.abc import Iterable, Sequence

__all__ = ["ConversionReport", "Leftover", "Match", "Shape"]

Shape = tuple[int, ...]

_SHOWN_CANDIDATES = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Match:
    """A variable of the model and the checkpoint tensor that belongs to it.

    Attributes:
        variable: The path of the variable.
        variable_shape: The shape of the variable.
        key: The key of the tensor in the checkpoint.
        key_shape: The shape of the tensor.
        saved_name: The name of the tensor in the checkpoint, if it is more informative than the
            key.
        is_by_position: Whether the two were matched only by their position in the model.
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
    """A variable without a tensor, or a tensor without a variable.

    Attributes:
        name: The path of the variable or the key of the tensor.
        shape: Its shape.
        candidates: The keys of tensors that may belong to the variable. For an ambiguous variable,
            these are all tensors that claim it; for a missing one, all unused tensors of its shape.
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
    """The result for every variable of the model and every tensor of the checkpoint.

    Attributes:
        checkpoint: The prefix of the checkpoint files.
        matched: Pairs of equal shape. Only these are assigned.
        mismatched: Pairs that belong together but differ in shape.
        ambiguous: Variables that more than one tensor may belong to.
        missing: Variables without a tensor.
        unexpected: Tensors of the model in the checkpoint that were not matched to a variable.
    """

    checkpoint: str
    matched: tuple[Match, ...] = ()
    mismatched: tuple[Match, ...] = ()
    ambiguous: tuple[Leftover, ...] = ()
    missing: tuple[Leftover, ...] = ()
    unexpected: tuple[Leftover, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether every variable was assigned and every tensor was used."""
        return not (self.mismatched or self.ambiguous or self.missing or self.unexpected)

    @classmethod
    def merged(cls, checkpoint: str, reports: Sequence["ConversionReport"]) -> "ConversionReport":
        """Return one report on several parts of a checkpoint."""
        kinds = [field.name for field in dataclasses.fields(cls) if field.name != "checkpoint"]
        entries = {
            kind: tuple(entry for report in reports for entry in getattr(report, kind))
            for kind in kinds
        }
        return cls(checkpoint=checkpoint, **entries)

    def __str__(self) -> str:
        lines = [f"{self.checkpoint}: {len(self.matched)} variables matched"]
        by_position = [match for match in self.matched if match.is_by_position]
        lines += _section("of these, by position", by_position)
        lines += _section("with a different shape", self.mismatched)
        lines += _section("ambiguous", self.ambiguous)
        lines += _section("missing from the checkpoint", self.missing)
        lines += _section("unexpected in the checkpoint", self.unexpected)
        return "\n".join(lines)


def _section(title: str, rows: Iterable[object]) -> list[str]:
    lines = [f"    {row}" for row in rows]
    return [f"  {title} ({len(lines)}):", *lines] if lines else []
