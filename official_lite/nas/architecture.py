"""The decision about an architecture: what was chosen for each label, in a file and in force."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_lite.common import errors, files, suggestions

__all__ = [
    "ARCH_FILE",
    "HISTORY_FILE",
    "Arch",
    "ask_for",
    "different_options",
    "fixed_arch",
    "is_fixed",
    "is_same_option",
    "read_arch",
    "read_history",
    "record_space",
    "space_hash",
    "to_history_line",
    "write_arch",
]

Arch = dict[str, Any]
"""What was chosen, by label: the name of a candidate, indices of inputs, a depth or a value."""

ARCH_FILE = "arch.json"
HISTORY_FILE = "arch_history.jsonl"
_FORMAT = 1


@dataclasses.dataclass
class _Decision:
    """What choices are answered with while a model is built.

    Attributes:
        arch: The answers; None answers each with its first option.
        asked: The options of each label that was asked for.
        wrong: What is wrong with the answers, one line each.
    """

    arch: Mapping[str, Any] | None
    asked: dict[str, list[Any]] = dataclasses.field(default_factory=dict)
    wrong: list[str] = dataclasses.field(default_factory=list)


_current: contextvars.ContextVar[_Decision | None] = contextvars.ContextVar("arch", default=None)


@contextlib.contextmanager
def fixed_arch(arch: str | os.PathLike[str] | Mapping[str, Any] | None) -> Iterator[None]:
    """Within it, a choice is what was chosen: only that is created, and no trace of the rest.

    ::

        def build_model(self):
            with nas.fixed_arch(self.task_config.arch):
                return build_model(...)  # with `nas.LayerChoice`

    Args:
        arch: A choice for each label, or a path as for `read_arch`; what is empty leaves the
            choices open.

    Raises:
        errors.ConfigValueError: When the model is built: labels of the model are missing, or the
            model does not have labels that are given, or not such an option.
    """
    if arch is None or arch == "" or (not isinstance(arch, str | os.PathLike) and not arch):
        yield
        return
    if isinstance(arch, str | os.PathLike):
        choices, described = read_arch(arch), os.fspath(arch)
    else:
        choices, described = _as_dict(arch), "The architecture"
    decision = _Decision(choices)
    with _in_force(decision):
        yield
    _require_fit(decision, described)


@contextlib.contextmanager
def record_space() -> Iterator[dict[str, list[Any]]]:
    """Within it, each choice is its first option; gives all options by label, as they come up.

    The space of a model that is searched trial by trial. Choices within candidates that are not
    built do not come up.
    """
    decision = _Decision(None)
    with _in_force(decision):
        yield decision.asked


def is_fixed() -> bool:
    """Whether choices are decided now, so that only what was chosen is to be created."""
    return _current.get() is not None


def ask_for(label: str, options: Sequence[Any]) -> int:
    """The index of what was chosen. Call it if `is_fixed`.

    Raises:
        errors.ConfigValueError: The label has other options elsewhere in the model.
        RuntimeError: No architecture is fixed.
    """
    decision = _current.get()
    if decision is None:
        raise RuntimeError(f"No architecture is fixed that could say what {label!r} is.")
    known = decision.asked.setdefault(label, list(options))
    if known != list(options):
        raise different_options(label, known, options)
    if decision.arch is None or label not in decision.arch:
        return 0
    for index, option in enumerate(options):
        if is_same_option(option, decision.arch[label]):
            return index
    decision.wrong.append(
        f"`{label}` is {decision.arch[label]!r}; there are {', '.join(map(str, options))}."
    )
    return 0


def different_options(
    label: str, known: Sequence[Any], options: Sequence[Any]
) -> errors.ConfigValueError:
    """The error for one label with two meanings."""
    return errors.ConfigValueError(
        f"Two choices are labelled {label!r}, which makes them one decision, but their options "
        f"differ: {list(known)} and {list(options)}."
    )


def is_same_option(option: Any, given: Any) -> bool:
    """Whether a value from a file or a command line is this option."""
    if isinstance(option, list):
        wanted = list(given) if isinstance(given, list | tuple) else [given]
        return option == wanted
    # A name of digits is a number to YAML.
    return bool(option == given) or (isinstance(option, str) and option == str(given))


def read_arch(path: str | os.PathLike[str]) -> Arch:
    """What an `arch.json` has chosen; for a directory, the one in it.

    Raises:
        errors.ConfigValueError: There is no such file, or it is none.
    """
    path = os.fspath(path)
    file = path if path.endswith(".json") else os.path.join(path, ARCH_FILE)
    if not files.exists(file):
        raise errors.ConfigValueError(
            f"`arch` is {path!r}, where there is no architecture. Wanted the `{ARCH_FILE}` of a "
            "search, the directory with it, or a choice for each label."
        )
    try:
        content = json.loads(files.read_text(file))
    except json.JSONDecodeError as error:
        raise errors.ConfigValueError(f"{file} is no JSON file: {error}") from error
    # A file of one's own may be nothing but the choices.
    arch = content.get("arch", content) if isinstance(content, dict) else None
    if not isinstance(arch, dict) or content.get("format", _FORMAT) != _FORMAT:
        raise errors.ConfigValueError(
            f"{file} is no architecture of format {_FORMAT}; wanted "
            "`{'arch': {label: choice}}`."
        )
    return arch


def write_arch(
    directory: str,
    arch: Mapping[str, Any],
    *,
    space: Mapping[str, Sequence[Any]],
    probs: Mapping[str, Sequence[float]] | None = None,
    metric: Mapping[str, float] | None = None,
    step: int | None = None,
) -> None:
    """Writes `arch.json`.

    Args:
        directory: Where.
        arch: What is chosen, by label.
        space: The options of every label.
        probs: How probable each option has become, by label.
        metric: Numbers of the last evaluation of the model with open choices.
        step: Of the training.
    """
    content = {
        "format": _FORMAT,
        "space": space_hash(space),
        "arch": dict(arch),
        "options": {label: list(options) for label, options in space.items()},
        "probs": _rounded(probs or {}),
        "metric": dict(metric or {}),
        "step": step,
    }
    files.write_text(os.path.join(directory, ARCH_FILE), json.dumps(content, indent=2) + "\n")


def to_history_line(step: int, probs: Mapping[str, Sequence[float]]) -> str:
    """A line of the file with the probabilities on the way of a search."""
    return json.dumps({"step": step, "probs": _rounded(probs)})


def read_history(directory: str) -> list[tuple[int, dict[str, list[float]]]]:
    """The steps of a search, and how probable each option was there; empty if nothing tells.

    What a search has written after a checkpoint that it was then started from again counts once: as
    it was written last.
    """
    path = os.path.join(directory, HISTORY_FILE)
    lines = files.read_text(path).splitlines() if files.exists(path) else []
    found: list[tuple[int, dict[str, list[float]]]] = []
    for line in lines:
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            # The last one may be about to be written.
            continue
        while found and found[-1][0] >= entry["step"]:
            found.pop()
        found.append((entry["step"], entry["probs"]))
    return found


def space_hash(space: Mapping[str, Sequence[Any]]) -> str:
    """The same for the same labels and options, in whatever order the labels come."""
    text = json.dumps({label: list(space[label]) for label in sorted(space)})
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _rounded(probs: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    return {label: [round(float(p), 6) for p in ps] for label, ps in probs.items()}


def _as_dict(arch: Any) -> dict[str, Any]:
    return dict(arch.as_dict() if hasattr(arch, "as_dict") else arch)


@contextlib.contextmanager
def _in_force(decision: _Decision) -> Iterator[None]:
    token = _current.set(decision)
    try:
        yield
    finally:
        _current.reset(token)


def _require_fit(decision: _Decision, described: str) -> None:
    given, asked = set(decision.arch or ()), set(decision.asked)
    problems = list(dict.fromkeys(decision.wrong))
    if missing := sorted(asked - given):
        problems.append(f"Nothing is chosen for {', '.join(missing)}.")
    for label in sorted(given - asked):
        problems.append(
            f"The model has no choice `{label}`. {suggestions.did_you_mean(label, asked)}".strip()
        )
    if problems:
        raise errors.ConfigValueError(f"{described} does not fit the model. {' '.join(problems)}")
