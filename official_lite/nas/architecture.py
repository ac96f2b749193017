"""Functions that read, write and apply an architecture: the chosen option of each label."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

from official_lite.common import errors, files, suggestions
from official_lite.modeling import hyperparams

__all__ = [
    "ARCH_FILE",
    "Arch",
    "FoundArch",
    "HISTORY_FILE",
    "add_unchosen",
    "ask_for",
    "different_options",
    "file_of",
    "fixed_arch",
    "index_of",
    "is_fixed",
    "read_arch",
    "read_found_arch",
    "read_history",
    "record_space",
    "require_label",
    "require_labels",
    "space_hash",
    "to_history_line",
    "write_arch",
]

Arch = dict[str, Any]
"""The chosen option by label: the name of a candidate, indices of inputs, a depth or a value."""

ARCH_FILE = "arch.json"
HISTORY_FILE = "arch_history.jsonl"
_FORMAT = 1


@dataclasses.dataclass
class _Decision:
    """The fixed architecture that choices look up while a model is built.

    Attributes:
        arch: The chosen options; None chooses the first option of each label.
        asked: The options of each label that was looked up.
        wrong: Error messages for invalid options, one line each.
        unchosen: Functions that create the parts that the architecture does not use.
    """

    arch: Mapping[str, Any] | None
    asked: dict[str, list[Any]] = dataclasses.field(default_factory=dict)
    wrong: list[str] = dataclasses.field(default_factory=list)
    unchosen: list[Callable[[], object]] = dataclasses.field(default_factory=list)


_current: contextvars.ContextVar[_Decision | None] = contextvars.ContextVar("arch", default=None)


@contextlib.contextmanager
def fixed_arch(
    arch: str | os.PathLike[str] | Mapping[str, Any] | hyperparams.ParamsDict | None,
) -> Iterator[None]:
    """Fix the architecture of models that are built inside the `with` statement.

    The constructor of a choice then returns the chosen option itself. Other options are not
    created, and the model contains no trace of the choice::

        def build_model(self):
            with nas.fixed_arch(self.task_config.arch):
                return build_model(...)  # with `nas.LayerChoice`

    Args:
        arch: The chosen option of each label, or a path as for `read_arch`. Labels inside
            candidates that are not chosen may be left out. If `arch` is empty or None, choices stay
            open.

    Raises:
        errors.ConfigValueError: At the end of the `with` statement, if `arch` lacks a label of the
            model, has a label that is unknown to the model, or names an unknown option.
    """
    if arch is None or arch == "" or (not isinstance(arch, str | os.PathLike) and not arch):
        yield
        return
    if isinstance(arch, str | os.PathLike):
        choices, described = read_arch(arch), os.fspath(arch)
    else:
        given = arch.as_dict() if isinstance(arch, hyperparams.ParamsDict) else arch
        choices, described = dict(given), "The architecture"
    decision = _Decision(choices)
    with _active(decision):
        yield
        needed = set(decision.asked)
        if choices.keys() - needed:
            # The remaining labels may belong to choices inside candidates that were not chosen.
            # Create those candidates to check. Their own candidates are appended to the list during
            # the loop.
            for create in decision.unchosen:
                create()
    wrong = list(dict.fromkeys(decision.wrong))
    known = decision.asked.keys()
    require_labels(choices, needed=needed, known=known, described=described, wrong=wrong)


@contextlib.contextmanager
def record_space() -> Iterator[dict[str, list[Any]]]:
    """Record the search space of models that are built inside the `with` statement.

    Use this for a model that is searched trial by trial. Each choice becomes its first option, so
    choices inside other candidates are not recorded, because those candidates are not built.

    Yields:
        A dict that receives the options of each label while the model is built.
    """
    decision = _Decision(None)
    with _active(decision):
        yield decision.asked


def is_fixed() -> bool:
    """Return whether an architecture is fixed, so that only chosen options are created."""
    return _current.get() is not None


def require_label(label: str) -> None:
    """Check that a choice has a label; choices with the same label are one decision."""
    if not label:
        raise errors.ConfigValueError(
            "The `label` of a choice is empty. Set a name; architectures use it to refer to the "
            "choice."
        )


def ask_for(label: str, options: Sequence[Any]) -> int:
    """Return the index of the chosen option of a label. Requires `is_fixed()`.

    Raises:
        errors.ConfigValueError: If the label is empty, or has different options elsewhere in the
            model.
    """
    require_label(label)
    decision: Any = _current.get()
    known = decision.asked.setdefault(label, list(options))
    if known != list(options):
        raise different_options(label, known, options)
    if decision.arch is None or label not in decision.arch:
        return 0
    try:
        return index_of(label, options, decision.arch[label])
    except errors.ConfigValueError as error:
        decision.wrong.append(str(error))
        return 0


def add_unchosen(creators: Iterable[Callable[[], object]]) -> None:
    """Add functions that create what the chosen option does not use. Requires `is_fixed()`.

    They are called only to find their labels, if the architecture has labels that the model lacks.
    """
    decision: Any = _current.get()
    decision.unchosen.extend(creators)


def index_of(label: str, options: Sequence[Any], given: object) -> int:
    """Return the index of the option `given`, which may come from a file or the command line.

    Raises:
        errors.ConfigValueError: If there is no such option.
    """
    for index, option in enumerate(options):
        if _is_same_option(option, given):
            return index
    raise errors.ConfigValueError(
        f"`{label}` is {given!r}; expected one of {', '.join(map(str, options))}."
    )


def different_options(
    label: str, known: Sequence[Any], options: Sequence[Any]
) -> errors.ConfigValueError:
    """Return the error for a label that is used with two different lists of options."""
    return errors.ConfigValueError(
        f"Two choices share the label {label!r}, but have different options: {list(known)} and "
        f"{list(options)}. Use the same options, or different labels."
    )


def _is_same_option(option: object, given: object) -> bool:
    if isinstance(option, list):
        wanted = list(given) if isinstance(given, list | tuple) else [given]
        return option == wanted
    # Also compare the values as strings, because YAML parses a name such as "3" as a number.
    return bool(option == given) or (isinstance(option, str) and option == str(given))


def read_arch(path: str | os.PathLike[str]) -> Arch:
    """Read an architecture from an `arch.json`, or from a directory that contains one.

    Raises:
        errors.ConfigValueError: If the file is missing or is not an architecture.
    """
    path = os.fspath(path)
    file = file_of(path)
    if not files.exists(file):
        raise errors.ConfigValueError(
            f"`arch` is {path!r}, which contains no architecture. Expected the `{ARCH_FILE}` of a "
            "search, its directory, or a choice for each label."
        )
    try:
        content = files.read_json(file)
    except ValueError as error:
        raise errors.ConfigValueError(
            f"{file} is not valid JSON: {error}. Correct the file."
        ) from error
    # A file written by hand may contain only the chosen options, without the key `arch`.
    arch = content.get("arch", content)
    if not isinstance(arch, dict) or content.get("format", _FORMAT) != _FORMAT:
        raise errors.ConfigValueError(
            f"{file} is not an architecture of format {_FORMAT}; expected "
            "`{'arch': {label: choice}}`."
        )
    return arch


def file_of(path: str) -> str:
    """Return the path of the file that `read_arch` reads."""
    return path if path.endswith(".json") else os.path.join(path, ARCH_FILE)


def write_arch(
    directory: str,
    arch: Mapping[str, Any],
    *,
    space: Mapping[str, Sequence[Any]],
    probs: Mapping[str, Sequence[float]] | None = None,
    metric: Mapping[str, float] | None = None,
    step: int | None = None,
) -> None:
    """Write `arch.json`.

    Args:
        directory: The directory for the file.
        arch: The chosen option by label.
        space: The options of every label.
        probs: The probability of each option, by label.
        metric: The metrics of the last evaluation of the model with open choices.
        step: The training step.
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
    files.write_text(os.path.join(directory, ARCH_FILE), files.to_json(content, indent=2) + "\n")


def to_history_line(step: int, probs: Mapping[str, Sequence[float]]) -> str:
    """Return a line of `arch_history.jsonl`, with the probabilities at a step."""
    return files.to_json({"step": step, "probs": _rounded(probs)})


def read_history(directory: str) -> list[tuple[int, dict[str, list[float]]]]:
    """Read the history of a search: its steps and the probabilities of the options at each.

    A search that is resumed from an earlier checkpoint writes some steps twice. Only the last
    record of each step is returned. The result is empty if there is no history.
    """
    path = os.path.join(directory, HISTORY_FILE)
    if not files.exists(path):
        return []
    with files.open_file(path, "rb") as file:
        lines = file.read().splitlines()
    found: list[tuple[int, dict[str, list[float]]]] = []
    for line in lines:
        try:
            entry = files.parse_json(line)
            step, probs = int(entry["step"]), _with_nan(entry["probs"])
        except (AttributeError, KeyError, TypeError, ValueError):
            # Skip the last line if it is incomplete: the search may still be writing it.
            continue
        while found and found[-1][0] >= step:
            found.pop()
        found.append((step, probs))
    return found


def space_hash(space: Mapping[str, Sequence[Any]]) -> str:
    """Return a hash of the labels and options that does not depend on the order of the labels."""
    text = json.dumps({label: list(space[label]) for label in sorted(space)})
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _rounded(probs: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    return {label: [round(float(p), 6) for p in ps] for label, ps in probs.items()}


def _with_nan(probs: Mapping[str, Sequence[float | None]]) -> dict[str, list[float]]:
    # Read null as NaN, which JSON does not support.
    return {label: [math.nan if p is None else p for p in ps] for label, ps in probs.items()}


@contextlib.contextmanager
def _active(decision: _Decision) -> Iterator[None]:
    token = _current.set(decision)
    try:
        yield
    finally:
        _current.reset(token)


def require_labels(
    arch: Mapping[str, Any],
    *,
    needed: Set[str],
    known: Set[str],
    described: str = "The architecture",
    wrong: Sequence[str] = (),
) -> None:
    """Check that an architecture has the labels of a model.

    Args:
        arch: The chosen option by label.
        needed: The labels that it must have.
        known: The labels that it may have.
        described: The architecture, for the error message.
        wrong: Further problems, one sentence each.

    Raises:
        errors.ConfigValueError: If a label is missing or unknown, or if there are further problems.
    """
    problems = list(wrong)
    if missing := sorted(needed - arch.keys()):
        problems.append(f"There is no choice for {', '.join(missing)}.")
    for label in sorted(arch.keys() - known):
        problems.append(
            f"The model has no choice `{label}`. {suggestions.did_you_mean(label, known)}".strip()
        )
    if problems:
        raise errors.ConfigValueError(f"{described} does not match the model. {' '.join(problems)}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FoundArch:
    """An architecture and the search that produced it.

    Attributes:
        arch: The chosen option of each label.
        options: All options of each label; empty if the file does not contain them.
        probs: The probability of each option; empty if there are none.
        step: The training step; None if the file does not contain it.
        history: The probabilities over time, from the first step to the last.
    """

    arch: Arch
    options: Mapping[str, Sequence[Any]]
    probs: Mapping[str, Sequence[float]]
    step: int | None
    history: Sequence[tuple[int, Mapping[str, Sequence[float]]]]


def read_found_arch(model_dir: str) -> FoundArch | None:
    """Read `arch.json` and its history; return None if there is no such file.

    Raises:
        errors.ConfigValueError: The file is damaged or has another format.
    """
    path = os.path.join(model_dir, ARCH_FILE)
    if not files.exists(path):
        return None
    arch = read_arch(path)
    content = files.read_json(path)
    try:
        return FoundArch(
            arch=arch,
            options={label: list(each) for label, each in content.get("options", {}).items()},
            probs={
                label: [float(p) for p in each] for label, each in content.get("probs", {}).items()
            },
            step=content.get("step"),
            history=read_history(model_dir),
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise errors.ConfigValueError(f"{path} is damaged: {error}. Correct the file.") from error
