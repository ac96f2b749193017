"""The chain of a run's records and checkpoints: a file of JSON lines that is only appended to.

::

    {"kind": "record", "params_sha256": …, "run_sha256": …, "after": null}
    {"kind": "checkpoint", "checkpoint": "ckpt-4", "sha256": …, "previous": null, "after": …}
    {"kind": "removed", "checkpoint": "ckpt-4", "reason": "old", "after": …}

`after` is the checksum of the line before, which reveals an edited, removed or moved line. The line
of a checkpoint holds the checksum of its commit file. The commit file holds the checksums of the
checkpoint's files, of the commit file that the training came from (`previous`), and of the line
with the record of the run (`record`). A run that resumes from an earlier checkpoint forks the
chain: two checkpoints then have the same `previous`.

The line of a checkpoint is appended after its commit file is written. If the process is killed in
between, `repair` appends the line at the next start.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_lite.checkpoint import commit
from official_lite.common import files, suggestions

__all__ = [
    "FILE",
    "Link",
    "adopt",
    "append",
    "append_checkpoint",
    "append_removal",
    "checksum",
    "config_of_run",
    "find_config",
    "find_unlisted",
    "is_pending",
    "listed",
    "read",
    "repair",
    "was_saved_with_auto",
]

FILE = "checkpoints.chain.jsonl"

# The number of bytes to read from the end of a chain file to find its last line. No line is longer.
_TAIL_BYTES = 1 << 16

_CONFIG = re.compile(r"params(?:\.(\d+))?\.yaml")

# Matches the field `runtime.execution` in the text of a config.
_EXECUTION = re.compile(rb"^(runtime:\n(?: .*\n)*?  execution: ).*$", re.MULTILINE)

# Serializes appends: a background save may append a checkpoint while the run appends its record.
_lock = threading.Lock()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Link:
    """A line of a chain.

    Attributes:
        number: The number of the line, counted from 1.
        sha256: The checksum of the line.
        entries: The contents; empty if the line is not a JSON object.
    """

    number: int
    sha256: str
    entries: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """The kind of the line: `record`, `checkpoint` or `removed`."""
        return str(self.entries.get("kind", ""))

    @property
    def checkpoint(self) -> str:
        """The name of the checkpoint; empty for a record."""
        return str(self.entries.get("checkpoint", ""))


def read(directory: str) -> list[Link]:
    """Return the lines of the chain in a directory; an empty list if there is no chain.

    An incomplete last line, which a killed process leaves behind, is left out.

    Raises:
        OSError: The file cannot be read.
    """
    path = os.path.join(directory, FILE)
    if not files.exists(path):
        return []
    with files.open_file(path, "rb") as file:
        lines = file.read().split(b"\n")[:-1]
    return [
        Link(number=number, sha256=_sha256(line), entries=_parse(line))
        for number, line in enumerate(lines, start=1)
    ]


def append(directory: str, kind: str, entries: Mapping[str, Any]) -> str:
    """Append a line to the chain and return its checksum; start the chain if there is none.

    Raises:
        OSError: The file cannot be written.
    """
    path = os.path.join(directory, FILE)
    with _lock:
        last = _last_line(path)
        after = None if last is None else _sha256(last)
        text = json.dumps({"kind": kind, **entries, "after": after}, separators=(",", ":"))
        with files.open_file(path, "a") as file:
            file.write(f"{text}\n")
        files.sync(path)
    return _sha256(text.encode())


def append_checkpoint(prefix: str, **entries: Any) -> str:
    """Append the line of a committed checkpoint and return the checksum of its commit file."""
    found = commit.read(prefix)
    sha256 = commit.checksum(prefix)
    append(
        os.path.dirname(prefix),
        "checkpoint",
        {
            "checkpoint": os.path.basename(prefix),
            "sha256": sha256,
            "previous": found.chain.get("previous") if found else None,
            **entries,
        },
    )
    return sha256


def adopt(prefix: str) -> None:
    """List a checkpoint that another program or version committed, if its directory has a chain."""
    if files.exists(os.path.join(os.path.dirname(prefix), FILE)):
        append_checkpoint(prefix, adopted=True)


def append_removal(prefix: str, reason: str) -> None:
    """Record that a checkpoint is about to be removed, if its directory has a chain."""
    directory = os.path.dirname(prefix)
    if files.exists(os.path.join(directory, FILE)):
        append(directory, "removed", {"checkpoint": os.path.basename(prefix), "reason": reason})


def listed(links: Sequence[Link]) -> dict[str, Link]:
    """Return the latest line of each checkpoint that the run has not removed, by name."""
    found: dict[str, Link] = {}
    for link in links:
        if link.kind == "checkpoint":
            found[link.checkpoint] = link
        elif link.kind == "removed":
            found.pop(link.checkpoint, None)
    return found


def find_unlisted(directory: str, links: Sequence[Link]) -> list[str]:
    """Return the checkpoints of a directory whose commit files the chain does not list.

    A commit file that can't be read is treated as not listed.
    """
    known = {str(link.entries.get("sha256")) for link in links if link.kind == "checkpoint"}
    found = commit.list_committed(directory, "ckpt")
    return [prefix for prefix in found if _checksum(prefix) not in known]


def find_config(directory: str, prefix: str) -> str | None:
    """Return the file with the config that a checkpoint was saved with; None if it was not kept.

    When a run resumes with a changed config, the earlier config is kept as `params.<n>.yaml`,
    unless the change is harmless. When a run ends, `params.yaml` names the execution mode that
    `auto` has chosen; the file then stands for the config with `auto`, too.

    Args:
        directory: The model directory of the run.
        prefix: The checkpoint.

    Raises:
        OSError: A file cannot be read.
        ValueError: The commit file is damaged.
    """
    return next(_configs_since(directory, prefix), None)


def was_saved_with_auto(prefix: str, config: str) -> bool:
    """Return whether `runtime.execution` was `auto` when a checkpoint was saved.

    Args:
        prefix: The checkpoint.
        config: The file that `find_config` returned for it.

    Raises:
        OSError: A file cannot be read.
        ValueError: The commit file is damaged.
    """
    found = commit.read(prefix)
    own = found.chain.get("record") if found else None
    with files.open_file(config, "rb") as file:
        sha256 = _sha256(_EXECUTION.sub(rb"\1auto", file.read()))
    return any(
        link.sha256 == own and link.entries.get("params_sha256") == sha256
        for link in read(os.path.dirname(prefix))
    )


def config_of_run(prefix: str) -> str:
    """Return a sentence on how to apply the config of a checkpoint's run, or an empty string."""
    directory = os.path.dirname(prefix)
    # The best checkpoint is saved in a subdirectory of the run.
    for folder in (directory, os.path.dirname(directory)):
        if path := _find_similar_config(folder, prefix):
            return (
                " To use the original model and optimizer, apply the config of the run: "
                f"{suggestions.config_file(path)}."
            )
    return ""


def _find_similar_config(directory: str, prefix: str) -> str | None:
    """Return the file with a config that builds the model and optimizer of a checkpoint.

    If the config of the checkpoint's own record was not kept, return the first later config that
    was kept. The two differ only in harmless fields. If the chain does not lead to any config,
    return the file with the highest number. Return None if there is no `params.yaml`.
    """
    kept = _kept_configs(directory)
    if 0 not in kept:
        return None
    with contextlib.suppress(OSError, ValueError):
        if found := next(filter(None, _configs_since(directory, prefix)), None):
            return found
    return kept[max(kept)]


def _kept_configs(directory: str) -> dict[int, str]:
    """Return the files with the configs of a run by number; `params.yaml` has the number 0."""
    names = files.list_names(directory or os.curdir)
    found = filter(None, map(_CONFIG.fullmatch, names))
    return {int(match.group(1) or 0): os.path.join(directory, match.group()) for match in found}


def _configs_since(directory: str, prefix: str) -> Iterator[str | None]:
    """Yield the file with the config of a checkpoint's record, and then those of later records.

    Yield None for a config that was not kept.
    """
    found = commit.read(prefix)
    own = found.chain.get("record") if found else None
    exact: dict[str, str] = {}
    before_choice: dict[str, str] = {}
    for path in _kept_configs(directory).values():
        with files.open_file(path, "rb") as file:
            content = file.read()
        exact[_sha256(content)] = path
        before_choice[_sha256(_EXECUTION.sub(rb"\1auto", content))] = path
    kept = before_choice | exact
    records = (link for link in read(directory) if link.kind == "record")
    for link in itertools.dropwhile(lambda link: link.sha256 != own, records):
        yield kept.get(str(link.entries.get("params_sha256")))


def repair(directory: str) -> None:
    """Complete the chain after a killed process; call this only before a run writes to it.

    * A checkpoint that was committed just before the kill gets its line.
    * Checkpoints of a directory without a chain, and those whose commit files have no links, get
      lines which say that another version wrote them.
    * Listed checkpoints that are gone are recorded as removed by hand.

    Damaged checkpoints get no line; the restore sets them aside.
    """
    links = read(directory)
    unlisted = [prefix for prefix in find_unlisted(directory, links) if _is_sound(prefix)]
    linked = [prefix for prefix in unlisted if links and _has_links(prefix)]
    if len(linked) == 1 and is_pending(linked[0], links):
        append_checkpoint(linked[0])
    for prefix in unlisted:
        if prefix not in linked:
            append_checkpoint(prefix, adopted=True)
    for name in listed(links):
        prefix = os.path.join(directory, name)
        if not files.exists(commit.path_of(prefix)):
            append_removal(prefix, "by hand")


def is_pending(prefix: str, links: Sequence[Link]) -> bool:
    """Return whether a process was killed between committing a checkpoint and appending its line.

    Such a checkpoint belongs to the last record of the chain, and the chain does not list another
    checkpoint of this name.
    """
    if os.path.basename(prefix) in listed(links):
        return False
    try:
        found = commit.read(prefix)
    except (OSError, ValueError):
        return False
    records = [link.sha256 for link in links if link.kind == "record"]
    return bool(found and records and found.chain.get("record") == records[-1])


def _checksum(prefix: str) -> str | None:
    try:
        return commit.checksum(prefix)
    except OSError:
        return None


def _is_sound(prefix: str) -> bool:
    try:
        return commit.find_damage(prefix) is None
    except OSError:
        return False


def _has_links(prefix: str) -> bool:
    found = commit.read(prefix)
    return found is not None and bool(found.chain)


def checksum(entries: Mapping[str, Any]) -> str:
    """Return the checksum of a JSON-serializable mapping, regardless of the order of its keys."""
    return _sha256(json.dumps(entries, sort_keys=True, separators=(",", ":")).encode())


def _last_line(path: str) -> bytes | None:
    """Remove an incomplete line from the end of a chain file, and return the last complete line.

    Returns:
        The line; None if there is no complete line.
    """
    if not files.exists(path):
        return None
    size = files.size(path)
    with files.open_file(path, "rb") as file:
        file.seek(max(0, size - _TAIL_BYTES))
        tail: bytes = file.read()
    complete, _, incomplete = tail.rpartition(b"\n")
    if incomplete:
        files.truncate(path, size - len(incomplete))
    return complete.rpartition(b"\n")[2] or None


def _parse(line: bytes) -> Mapping[str, Any]:
    try:
        return files.parse_json(line)
    except ValueError:
        return {}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
