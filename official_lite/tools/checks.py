"""The checks of a run's files against its chain. They run no code that the run names."""

import dataclasses
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from official_lite.checkpoint import chain, commit
from official_lite.common import errors, files
from official_lite.run import provenance, run_record

__all__ = ["BROKEN", "HOLDS", "UNCHECKED", "Check", "check", "check_sources", "find_segments"]

HOLDS = "holds"
BROKEN = "BROKEN"
UNCHECKED = "unchecked"

_NO_FILE = "no such file"
_NAME = re.compile(r"[^/\\]+-\d+")
_KINDS = ("record", "checkpoint", "removed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """The result of the check of a link.

    Attributes:
        link: What was checked, such as `config` or `ckpt-4`.
        state: One of `HOLDS`, `BROKEN` and `UNCHECKED`.
        file: The file that breaks the link.
        recorded: What the run recorded about the file.
        found: What was found.
        note: A remark for the reader.
    """

    link: str
    state: str = HOLDS
    file: str = ""
    recorded: str = ""
    found: str = ""
    note: str = ""

    @property
    def differs(self) -> str:
        """The difference in one line; empty if there is none."""
        return f"{self.file}: recorded {self.recorded}, found {self.found}" if self.file else ""

    def __str__(self) -> str:
        return f"{self.state:<10}{self.link:<14}{self.differs or self.note}".rstrip()


def check(run_dir: str) -> Iterator[Check]:
    """Check the chain, the checkpoints, the config, the record, and what the run was made from.

    Raises:
        errors.CheckpointError: The run has no chain and no checkpoint that belongs to one.
    """
    links = chain.read(run_dir)
    if not links and not _has_lost_its_chain(run_dir):
        raise errors.CheckpointError(
            f"{run_dir} has no {chain.FILE}: the run was written by an older version or another "
            "program, or has not started."
        )
    yield from _check_order(links)
    for link in links:
        if link.kind == "record":
            yield Check(link="record", note=_describe_start(link, links))
        elif link.kind == "checkpoint":
            yield _check_checkpoint(run_dir, link, links)
    yield from _check_unlisted(run_dir, links)
    yield from check_sources(run_dir)


def check_sources(run_dir: str) -> Iterator[Check]:
    """Check the config, the record, and the files and packages that the run was made from."""
    links = chain.read(run_dir)
    yield _check_file(run_dir, "params.yaml", "config", links, "params_sha256", _hash_params)
    of_record = _check_file(run_dir, "run.json", "run.json", links, "run_sha256", _hash_start)
    yield of_record
    yield from _check_provenance(_read_record(run_dir), is_trusted=of_record.state == HOLDS)


def find_segments(run_dir: str) -> list[tuple[str, str]]:
    """Return pairs of checkpoints that are both kept, the second of which came from the first."""
    listed = chain.listed(chain.read(run_dir))
    by_sha256 = {str(link.entries.get("sha256")): name for name, link in listed.items()}
    pairs = [
        (by_sha256.get(str(link.entries.get("previous"))), name) for name, link in listed.items()
    ]
    paths = [(before, after) for before, after in pairs if before and _NAME.fullmatch(before)]
    found = [(os.path.join(run_dir, a), os.path.join(run_dir, b)) for a, b in paths]
    kept = [pair for pair in found if all(files.exists(f"{path}.index") for path in pair)]
    return sorted(kept, key=lambda pair: commit.step_of(pair[1]))


def _read_record(run_dir: str) -> Mapping[str, Any]:
    try:
        return files.read_json(os.path.join(run_dir, "run.json"))
    except (OSError, ValueError):
        return {}


def _has_lost_its_chain(run_dir: str) -> bool:
    for prefix in commit.list_committed(run_dir, "ckpt"):
        try:
            found = commit.read(prefix)
        except (OSError, ValueError):
            continue
        if found is not None and found.chain:
            return True
    return False


def _check_order(links: Sequence[chain.Link]) -> Iterator[Check]:
    """Check that each line names the line before it, which no line after the first may lack."""
    is_sound = True
    before: str | None = None
    for link in links:
        after = link.entries.get("after")
        if link.kind not in _KINDS:
            is_sound = False
            yield _broken_line(link, "a line of the chain", "something else")
        elif after != before:
            is_sound = False
            found = f"a line before it with sha256 {before}" if before else "no line before it"
            yield _broken_line(link, f"a line before it with sha256 {after}", found)
        before = link.sha256
    if is_sound and links:
        yield Check(link="chain", note=f"{len(links)} lines, none edited, removed or moved")


def _broken_line(link: chain.Link, recorded: str, found: str) -> Check:
    file = f"{chain.FILE}, line {link.number}"
    return Check(link="chain", state=BROKEN, file=file, recorded=recorded, found=found)


def _describe_start(link: chain.Link, links: Sequence[chain.Link]) -> str:
    """Return when a record was written, and whether its run had changed since the record before."""
    texts = [f"of the start at {link.entries.get('start_time')}"]
    earlier = [e for e in links[: link.number - 1] if "code_sha256" in e.entries]
    for name in ("code", "environment", "inputs"):
        now = link.entries.get(f"{name}_sha256")
        if earlier and now and now != earlier[-1].entries.get(f"{name}_sha256"):
            texts.append(f"changed {name}")
    git = link.entries.get("git")
    for state in git.values() if isinstance(git, dict) else ():
        if isinstance(state, dict):
            changes = " with changes" if state.get("changes_sha256") else ""
            texts.append(f"git {str(state.get('commit'))[:12]}{changes}")
    return ", ".join(texts)


def _check_checkpoint(run_dir: str, link: chain.Link, links: Sequence[chain.Link]) -> Check:
    name, previous = link.checkpoint, link.entries.get("previous")
    earlier = [each for each in links[: link.number - 1] if each.kind == "checkpoint"]
    came_from = [each for each in earlier if each.entries.get("sha256") == previous]
    if not _NAME.fullmatch(name):
        return _broken_line(link, "the name of a checkpoint", repr(name))
    if previous is not None and not came_from:
        return Check(
            link=name,
            state=BROKEN,
            file=f"{chain.FILE}, line {link.number}",
            recorded=f"a previous checkpoint with sha256 {previous}",
            found="no line of it before",
        )
    note = f"after {came_from[-1].checkpoint}" if came_from else "the first one"
    if link.entries.get("adopted"):
        note = "written by another program or version"
    elif earlier and (not came_from or came_from[-1].number != earlier[-1].number):
        note += f"; forks from the chain, which had come to {earlier[-1].checkpoint}"
    if chain.listed(links).get(name) is not link:
        return Check(link=name, note=f"{note}; {_describe_removal(link, links)}")
    prefix = os.path.join(run_dir, name)
    return _check_files(prefix, link, links) or Check(link=name, note=note)


def _describe_removal(link: chain.Link, links: Sequence[chain.Link]) -> str:
    for later in links[link.number :]:
        if later.checkpoint == link.checkpoint:
            reason = later.entries.get("reason") if later.kind == "removed" else "replaced"
            return f"removed ({reason})"
    return "removed"


def _check_files(prefix: str, link: chain.Link, links: Sequence[chain.Link]) -> Check | None:
    """Return what is wrong with the files of a checkpoint; None if nothing is."""
    name, path = os.path.basename(prefix), os.path.basename(commit.path_of(prefix))
    wanted = link.entries.get("sha256")
    if not files.exists(commit.path_of(prefix)):
        return _broken(name, path, f"sha256 {wanted}", _NO_FILE)
    try:
        found = commit.checksum(prefix)
    except OSError as error:
        return _broken(name, path, f"sha256 {wanted}", str(error))
    if found != wanted:
        return _broken(name, path, f"sha256 {wanted}", f"sha256 {found}")
    return _check_commit(prefix, link.entries.get("previous"), links[: link.number])


def _check_commit(prefix: str, previous: Any, links: Sequence[chain.Link]) -> Check | None:
    """Compare a commit file with the files of its checkpoint and with the links before it."""
    name, path = os.path.basename(prefix), os.path.basename(commit.path_of(prefix))
    try:
        committed = commit.read(prefix)
        if committed is not None and (differs := commit.find_tampering(prefix)):
            return _broken(name, *differs)
        damage = commit.find_damage(prefix)
    except (OSError, ValueError) as error:
        return _broken(name, path, "a commit file", str(error))
    if committed is None or damage is not None:
        return _broken(name, path, "a sound checkpoint", damage or _NO_FILE)
    if committed.chain.get("previous") != previous:
        return _broken(name, path, f"previous {committed.chain.get('previous')}", str(previous))
    record = committed.chain.get("record")
    if record and record not in [each.sha256 for each in links if each.kind == "record"]:
        return _broken(name, chain.FILE, f"a record with sha256 {record}", "no such line")
    return None


def _check_unlisted(run_dir: str, links: Sequence[chain.Link]) -> Iterator[Check]:
    """Check the checkpoints that the chain does not list; a killed process may leave one."""
    is_killed = _read_record(run_dir).get("status") == "running"
    names = chain.listed(links)
    found = [
        prefix
        for prefix in chain.find_unlisted(run_dir, links)
        if os.path.basename(prefix) not in names
    ]
    for prefix in found:
        name = os.path.basename(prefix)
        if len(found) == 1 and is_killed and chain.is_pending(prefix, links):
            committed = commit.read(prefix)
            previous = committed.chain.get("previous") if committed else None
            note = "the process was killed before it listed this checkpoint"
            yield _check_commit(prefix, previous, links) or Check(link=name, note=note)
        else:
            recorded = "no line of this checkpoint"
            yield _broken(name, chain.FILE, recorded, os.path.basename(commit.path_of(prefix)))


def _check_file(
    run_dir: str,
    file: str,
    link: str,
    links: Sequence[chain.Link],
    entry: str,
    read_sha256: Callable[[str], str],
) -> Check:
    """Compare a file with the last record.

    A start that was killed between its line in the chain and its files leaves those of a record
    before. It has then saved no checkpoint.
    """
    path = os.path.join(run_dir, file)
    wanted: list[str] = []
    is_followed = False
    for each in reversed(links):
        if each.kind == "record":
            wanted.append(str(each.entries.get(entry)))
            if is_followed:
                break
        is_followed = is_followed or each.kind == "checkpoint"
    try:
        found = read_sha256(path)
    except OSError:
        return _broken(link, file, _any_of(wanted), _NO_FILE)
    except ValueError as error:
        return _broken(link, file, _any_of(wanted), str(error))
    if found in wanted:
        return Check(link=link, note=file)
    return _broken(link, file, _any_of(wanted), f"sha256 {found}")


def _any_of(wanted: Sequence[str]) -> str:
    return f"sha256 {wanted[0]}" if wanted else "no record in the chain"


def _hash_params(path: str) -> str:
    with files.open_file(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def _hash_start(path: str) -> str:
    return run_record.start_sha256(files.read_json(path))


def _check_provenance(record: Mapping[str, Any], *, is_trusted: bool) -> Iterator[Check]:
    parts: dict[str, Callable[[Any], Iterable[tuple[str, str, str]]]] = {
        "inputs": provenance.find_input_differences,
        "code": provenance.find_code_differences,
        "environment": provenance.find_environment_differences,
    }
    for name, find_differences in parts.items():
        if not is_trusted:
            yield Check(link=name, state=UNCHECKED, note="run.json can't be relied on")
            continue
        if name not in record:
            yield Check(link=name, state=UNCHECKED, note="not recorded before the first checkpoint")
            continue
        try:
            broken = [_broken(name, *difference) for difference in find_differences(record[name])]
            note = _count(name, record[name])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            broken = [_broken(name, "run.json", f"a description of the {name}", repr(error))]
            note = ""
        yield from broken or [Check(link=name, note=note)]


def _count(name: str, described: Any) -> str:
    """Describe how much was compared."""
    if name == "code":
        return f"{len(described['files'])} files"
    if name == "environment":
        return f"Python {described['python']} and {len(described['packages'])} packages"
    total = sum(each["num_files"] for each in described)
    how = [file["hashed"] for each in described for file in each["files"]]
    whole, sampled = how.count("whole"), how.count("sampled")
    remote = [each["pattern"] for each in described if files.is_remote(each["pattern"])]
    texts = [f"{total} files: {whole} compared completely, {sampled} by samples"]
    texts += [f"{total - whole - sampled} by size"] if total > whole + sampled else []
    texts += [f"not compared: {', '.join(remote)}"] if remote else []
    return ", ".join(texts)


def _broken(link: str, file: str, recorded: str, found: str) -> Check:
    return Check(link=link, state=BROKEN, file=file, recorded=recorded, found=found)
