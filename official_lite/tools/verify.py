"""Check that the files of a run are those that it wrote and read, and replay a part of it.

    python -m official_lite.tools verify runs/digits
    python -m official_lite.tools verify runs/digits --no-replay
    python -m official_lite.tools verify runs/mine --step=400 --import=my_tasks.py

The command prints one line for each link: the chain, each record and checkpoint in it, the config,
run.json, the input files, the code and the installed packages. It then replays the training from
the newest checkpoint that is followed by another one, in a temporary directory, and compares the
result with that one bit for bit. The exit code is 0 if all links hold, and 8 otherwise.
"""

import argparse
import collections
import dataclasses
import functools
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from official_lite.checkpoint import chain, commit
from official_lite.common import errors, files, plugins, terminal
from official_lite.execution import execution_record
from official_lite.modeling.hyperparams import yaml_io
from official_lite.run import model_dir_lock, provenance, run_record
from official_lite.tools import listing, sources

HOLDS = "holds"
BROKEN = "BROKEN"
UNCHECKED = "unchecked"

_NO_FILE = "no such file"
_NAME = re.compile(r"[^/\\]+-\d+")
_KINDS = ("record", "checkpoint", "removed")

# The file with the chosen execution mode, which a replay needs in addition to the checkpoint. A
# replay must not read `recovery.json`: a divergence in the replayed segment would occur again and
# be counted twice.
_EXECUTION = "execution.json"

# The hooks that do not affect training. They write files, possibly outside of the model directory.
_WRITING_HOOKS = ("best_checkpoint", "export_model", "graph", "profiler")
# A path to a class of this package or of Keras. Other paths are not imported by this process.
_KNOWN_PATH = re.compile(r"(official_lite|keras)(\.\w+)*(?<!\.py):\w+")
# A hook that replaces a callback that writes files. The callback can't just be removed, because the
# states of `keras_callback` hooks are named by their order. With `every_n_steps` of 0,
# `TerminateOnNaN` is never called.
_IDLE = {"name": "keras_callback", "callback": "TerminateOnNaN", "every_n_steps": 0}
_HOOK_STATES = "hooks/.ATTRIBUTES/py_state"
# The entries of the state of a `keras_callback` that contain measured speeds.
_LOGS = ("train_logs", "validation_logs")

_OF_SEVERAL_PROCESSES = ("multi_worker_mirrored", "parameter_server", "tpu")

_POLL_SECONDS = 0.05
_MAX_CHARACTERS = 2000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """The result of checking a link.

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("model_dir", help="The model directory of a run.")
    parser.add_argument(
        "--no-replay", action="store_true", help="Compare files only, and run nothing."
    )
    parser.add_argument("--step", type=int, help="The step of the checkpoint from which to replay.")
    sources.add_arguments(parser)
    sources.add_trust_argument(parser)
    listing.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print the checks and return 8 unless all links hold."""
    files.require_directory(args.model_dir)
    if model_dir_lock.is_held(args.model_dir, waits=True):
        raise errors.ModelDirBusyError(
            f"A run is training in {args.model_dir}. Verify it when it has ended."
        )
    results = []
    for check in check_links(args.model_dir):
        results.append(check)
        _print(check, args)
    if not args.no_replay:
        results.append(_replay(args, is_sound=all(c.state != BROKEN for c in results)))
        _print(results[-1], args)
    is_replayed = args.no_replay or results[-1].state == HOLDS
    holds = is_replayed and all(check.state != BROKEN for check in results)
    if args.json:
        rows = [dataclasses.asdict(check) for check in results]
        listing.print_json({"holds": holds, "checks": rows})
    return int(errors.ExitCode.DONE if holds else errors.ExitCode.UNVERIFIED)


def _replay(args: argparse.Namespace, *, is_sound: bool) -> Check:
    if not is_sound:
        return _unchecked("an earlier link is broken")
    segments = find_segments(args.model_dir)
    # A replay evaluates before it saves the checkpoint of the same step, and the evaluation may
    # change the state of hooks. Prefer segments whose last checkpoint was saved in this order, too.
    replayable = [each for each in segments if not _precedes_evaluation(each[1])]
    segment = choose(segments if args.step is not None else replayable or segments, args.step)
    if segment is None:
        return _unchecked("the run has no two consecutive checkpoints; see `trainer.max_to_keep`")
    before, after = segment
    name = os.path.basename(after)
    if _precedes_evaluation(after):
        return _unchecked(f"the run was preempted before the evaluation at {name}")
    config = chain.find_config(args.model_dir, after)
    if config is None:
        return _unchecked(f"the config was changed since {name} was saved")
    if needs_a_cluster(config):
        return _unchecked("a run of several processes can't be replayed; pass --no-replay")
    mode = _find_lost_execution(config, after)
    if mode and not any(sets(each, "runtime", "execution") for each in args.set):
        return _unchecked(
            f"the replay would not use the execution mode of {name}; pass "
            f"--set=runtime.execution={mode}"
        )
    unequal = replay(args.model_dir, before, after, args, config=config)
    steps = f"from step {commit.step_of(before)} to {commit.step_of(after)}"
    if unequal:
        recorded = f"the variables {', '.join(unequal[:5])}{' …' if unequal[5:] else ''}"
        return _broken("replay", after, recorded, f"different bits after the replay {steps}")
    return Check(link="replay", note=f"{steps}: equal bit for bit")


def _precedes_evaluation(checkpoint: str) -> bool:
    """Return whether the run was preempted before the evaluation at the step of a checkpoint."""
    import tensorflow as tf

    from official_lite.checkpoint import inspection, saved_graph

    mark = f"{inspection.PENDING_EVALUATION}{saved_graph.VALUE_SUFFIX}"
    return bool(tf.train.load_checkpoint(checkpoint).has_tensor(mark))


def _find_lost_execution(config: str, checkpoint: str) -> str | None:
    """Return the execution mode of a checkpoint if a replay might not repeat it.

    If `execution.json` is lost, the mode that `auto` chose for evaluations is unknown, even if the
    config of the finished run names the mode of training.
    """
    from official_lite.core import config_definitions
    from official_lite.execution import modes

    committed = commit.read(checkpoint)
    mode = committed.state.get("execution") if committed else None
    runtime = config_definitions.RuntimeConfig()
    runtime.override(yaml_io.read_yaml(config).get("runtime", {}), is_strict=False)
    planned = modes.execution_of(runtime)
    names_choice = planned == mode == runtime.execution
    if planned == "auto" or (names_choice and chain.was_saved_with_auto(checkpoint, config)):
        chosen = execution_record.load(os.path.dirname(checkpoint))
        planned = chosen.execution if chosen else "graph"
    return mode if planned != mode else None


def _find_execution(config: str, checkpoint: str) -> str | None:
    """Return the `runtime.execution` with which a replay repeats the choice of `auto`.

    The config of a finished run names the chosen mode. If a config sets that mode, evaluations use
    it, too, but `auto` may have chosen another mode for evaluations.

    Args:
        config: The file with the config of the segment.
        checkpoint: The checkpoint at the end of the segment.

    Returns:
        `auto` if `execution.json` has the choice; `graph` if `auto` used this mode, so that a
        replay does not benchmark; None if the replay can use the mode of the config.
    """
    if not chain.was_saved_with_auto(checkpoint, config):
        return None
    committed = commit.read(checkpoint)
    mode = committed.state.get("execution") if committed else None
    if mode == "graph":
        return mode
    chosen = execution_record.load(os.path.dirname(checkpoint))
    return "auto" if chosen and chosen.execution == mode else None


def _unchecked(note: str) -> Check:
    return Check(link="replay", state=UNCHECKED, note=note)


def _print(check: Check, args: argparse.Namespace) -> None:
    if not args.json:
        print(terminal.escape_controls(str(check)), flush=True)


def needs_a_cluster(config: str) -> bool:
    """Return whether several processes have trained together, according to a config file."""
    runtime = yaml_io.read_yaml(config).get("runtime", {})
    return runtime.get("distribution_strategy") in _OF_SEVERAL_PROCESSES


def choose(segments: Sequence[tuple[str, str]], step: int | None) -> tuple[str, str] | None:
    """Return the segment to replay: the newest one, or the newest one that begins at a step.

    Raises:
        errors.CheckpointError: No segment begins at the step.
    """
    if step is None:
        return segments[-1] if segments else None
    found = [segment for segment in segments if commit.step_of(segment[0]) == step]
    if not found:
        begins = [str(commit.step_of(before)) for before, _ in segments]
        valid = (
            f"--step can be {', '.join(begins)}."
            if begins
            else "The run has no two consecutive checkpoints; see `trainer.max_to_keep`."
        )
        raise errors.CheckpointError(
            f"Found no checkpoint at step {step} that is followed by a later one. {valid}"
        )
    return found[-1]


def replay(
    run_dir: str, before: str, after: str, args: argparse.Namespace, *, config: str
) -> list[str]:
    """Train again from one checkpoint to another one.

    The directory of the run is only read. Metrics are not written, because a writer may send them
    to a service. Hooks and callbacks of this package and of Keras that only write are left out.

    Args:
        run_dir: The model directory.
        before: The checkpoint to start from.
        after: The next checkpoint of the run.
        args: The arguments of `verify`.
        config: The file with the config of the segment.

    Returns:
        The names of the variables that are not equal bit for bit. The states of hooks that were
        left out are not compared, nor are logs, which contain times.

    Raises:
        errors.ConfigError: The run can't be started; see `sources.train_command`.
        errors.OfficialLiteError: Training ended before it saved the checkpoint.
    """
    from official_lite.checkpoint import inspection

    step = commit.step_of(after)
    command = sources.train_command(run_dir, args, config=config)
    of_hooks = [each for each in args.set if sets(each, "trainer", "hooks")]
    hooks = _read_hooks(config, of_hooks)
    kept, left_out = leave_out_writers(hooks)
    with tempfile.TemporaryDirectory() as directory:
        model_dir = os.path.join(directory, "run")
        files.makedirs(model_dir)
        paths = [commit.path_of(before), *commit.list_files(before)]
        paths.append(os.path.join(run_dir, _EXECUTION))
        for path in filter(files.exists, paths):
            shutil.copy(path, model_dir)
        command += [
            f"--model_dir={model_dir}",
            # Override no other fields: `train_steps`, for example, may determine the learning rate.
            f"--set=trainer.checkpoint_interval={step}",
            "--set=trainer.writers=[]",
        ]
        execution = _find_execution(config, after)
        if execution and not any(sets(each, "runtime", "execution") for each in args.set):
            command.append(f"--set=runtime.execution={execution}")
        if kept != hooks:
            # Remove the overrides of hooks: they are already applied to `kept`, and their indexes
            # refer to the original list.
            command = [each for each in command if each.removeprefix("--set=") not in of_hooks]
            command.append(f"--set=trainer.hooks={_to_flow(kept)}")
        replayed = os.path.join(model_dir, os.path.basename(after))
        _train_until(command, commit.path_of(replayed), os.path.join(directory, "log"))
        unequal = inspection.find_unequal_bits(after, replayed)
        if _HOOK_STATES in unequal:
            states = [_pack_hook_states(path, left_out) for path in (after, replayed)]
            if states[0] == states[1]:
                unequal.remove(_HOOK_STATES)
        return unequal


def sets(assignment: str, *path: str) -> bool:
    """Return whether an assignment `path=value` sets the field at a path or a field below it."""
    return yaml_io.parse_path(assignment.partition("=")[0])[: len(path)] == [*path]


def _read_hooks(config: str, overrides: Sequence[str]) -> list[Any]:
    """Return the hooks in the config file of a run, after the overrides `path=value`."""
    from official_lite.core import config_definitions
    from official_lite.modeling.hyperparams import params_dict

    given = yaml_io.read_yaml(config)
    params = config_definitions.ExperimentConfig()
    params.trainer.override({"hooks": given.get("trainer", {}).get("hooks") or []})
    split = [each.partition("=") for each in overrides]
    params_dict.set_by_paths(params, [(path.strip(), value) for path, _, value in split])
    return params.trainer.as_dict()["hooks"] or []


def _to_flow(value: Any) -> str:
    """Return a plain value as YAML on one line, for `--set`."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_to_flow(k)}: {_to_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_to_flow, value)) + "]"
    text = json.dumps(value, ensure_ascii=False)
    return {"Infinity": ".inf", "-Infinity": "-.inf", "NaN": ".nan"}.get(text, text)


def leave_out_writers(entries: Sequence[Any]) -> tuple[list[Any], set[str]]:
    """Leave out the hooks of a config that do not affect training, but write files.

    Returns:
        The hooks to replay, and the names of the states of those that are left out.
    """
    from official_lite.core import hook_factory
    from official_lite.orbit.hooks import keras_callback

    writing = tuple(map(hook_factory.resolve, _WRITING_HOOKS))
    kept: list[Any] = []
    left_out: set[str] = set()
    counts: collections.Counter[str] = collections.Counter()
    for entry in entries:
        arguments = entry if isinstance(entry, Mapping) else {"name": entry}
        cls = _find_class(arguments.get("name"), hook_factory.resolve)
        if cls is None:
            kept.append(entry)
            continue
        number = counts[cls.__name__]
        counts[cls.__name__] += 1
        is_callback = issubclass(cls, keras_callback.KerasCallback)
        writes = issubclass(cls, writing)
        if is_callback:
            writes = _is_writing_callback(arguments.get("callback"))
        if not writes:
            kept.append(entry)
            continue
        left_out.add(f"{cls.__name__}_{number}" if number else cls.__name__)
        if is_callback:
            kept.append(_IDLE)
    return kept, left_out


def _is_writing_callback(spec: Any) -> bool:
    from official_lite.core import hook_factory
    from official_lite.orbit.hooks import keras_callback

    registry = keras_callback.keras_callbacks()
    cls = _find_class(spec, functools.partial(plugins.resolve, registry=registry))
    if cls is None or not cls.__module__.startswith("keras."):
        return False
    # All other Keras callbacks write files or have no effect on training, except for those that
    # take a function, which a config can't contain.
    return cls.__name__ not in hook_factory.HARMLESS_CALLBACKS


def _find_class(spec: Any, resolve: Callable[[str], Any]) -> type | None:
    """Return the class that a config names; None if it belongs to the user's code."""
    if not isinstance(spec, str) or (plugins.names_code(spec) and not _KNOWN_PATH.fullmatch(spec)):
        return None
    try:
        found = resolve(spec)
    except errors.UnknownNameError:
        # The user's code, which this process does not import, registers the name.
        return None
    return found if isinstance(found, type) else None


def _pack_hook_states(checkpoint: str, left_out: Collection[str]) -> bytes:
    """Return the states of the hooks in a checkpoint, without logs and without those left out."""
    import tensorflow as tf

    from official_lite.orbit.hooks import hook

    reader = tf.train.load_checkpoint(checkpoint)
    has_states = reader.has_tensor(_HOOK_STATES)
    states = hook.unpack(reader.get_tensor(_HOOK_STATES)) if has_states else {}
    return hook.pack(
        {
            name: {entry: value for entry, value in state.items() if entry not in _LOGS}
            for name, state in states.items()
            if name not in left_out
        }
    )


def _train_until(command: Sequence[str], path: str, log: str) -> None:
    """Run a command, and kill it as soon as a file exists."""
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=output, start_new_session=True
        )
    try:
        while process.poll() is None and not files.exists(path):
            time.sleep(_POLL_SECONDS)
    finally:
        process.kill()
        process.wait()
    if not files.exists(path):
        with open(log, encoding="utf-8", errors="replace") as file:
            said = file.read()[-_MAX_CHARACTERS:]
        raise errors.OfficialLiteError(
            f"The replay ended before it had saved {os.path.basename(path)}:\n{said}"
        )


def check_links(run_dir: str) -> Iterator[Check]:
    """Check the chain, the checkpoints, the config, the record, and what the run was made from.

    Raises:
        errors.CheckpointError: The run has no chain and no checkpoint that belongs to one.
    """
    links = chain.read(run_dir)
    if not links and not _has_lost_its_chain(run_dir):
        raise errors.CheckpointError(
            f"{run_dir} has no {chain.FILE}: the run was written by an older version or another "
            "program, or has not started. Pass the directory of a run that has saved a checkpoint."
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
    yield _check_file(run_dir, "params.yaml", "config", links, "params_sha256", commit.sha256)
    of_record = _check_file(run_dir, "run.json", "run.json", links, "run_sha256", _hash_start)
    yield of_record
    yield from _check_provenance(_read_record(run_dir), is_trusted=of_record.state == HOLDS)


def find_segments(run_dir: str) -> list[tuple[str, str]]:
    """Return pairs of existing checkpoints, the second of which was trained from the first."""
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
    """Check that each line after the first contains the SHA-256 of the preceding line."""
    is_sound = True
    before: str | None = None
    for link in links:
        after = link.entries.get("after")
        if link.kind not in _KINDS:
            is_sound = False
            yield _broken("chain", _place_of(link), "a line of the chain", "a line of another kind")
        elif after != before:
            is_sound = False
            found = f"a line before it with sha256 {before}" if before else "no line before it"
            yield _broken("chain", _place_of(link), f"a line before it with sha256 {after}", found)
        before = link.sha256
    if is_sound and links:
        yield Check(link="chain", note=f"{len(links)} lines, none edited, removed or moved")


def _describe_start(link: chain.Link, links: Sequence[chain.Link]) -> str:
    """Describe the process that wrote a record.

    The text contains the start time of the process, the changes since the previous record, and the
    Git commits.
    """
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
        return _broken("chain", _place_of(link), "the name of a checkpoint", repr(name))
    if previous is not None and not came_from:
        recorded = f"a previous checkpoint with sha256 {previous}"
        return _broken(name, _place_of(link), recorded, "no earlier line with that sha256")
    note = f"after {came_from[-1].checkpoint}" if came_from else "the first one"
    if link.entries.get("adopted"):
        note = "written by another program or version"
    elif earlier and (not came_from or came_from[-1].number != earlier[-1].number):
        note += f"; forks from the chain, which had reached {earlier[-1].checkpoint}"
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
    """Compare a checkpoint with its link; return the failed check, or None if they match."""
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
    """Compare a commit file with the checkpoint's files and with the chain.

    Return the failed check, or None if they match.
    """
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
    """Check the checkpoints that the chain does not list; a killed process may leave one behind."""
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
            recorded = "no line about this checkpoint"
            yield _broken(name, chain.FILE, recorded, os.path.basename(commit.path_of(prefix)))


def _check_file(
    run_dir: str,
    file: str,
    link: str,
    links: Sequence[chain.Link],
    entry: str,
    read_sha256: Callable[[str], str],
) -> Check:
    """Compare a file with the last record and, if no checkpoint follows it, with earlier records.

    If a start is killed after it added its record to the chain but before it wrote its files, the
    files still match an earlier record. Such a start has saved no checkpoint, so the search for a
    match ends at a record that is followed by a checkpoint.
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
    """Describe how many files or packages were compared."""
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


def _place_of(link: chain.Link) -> str:
    return f"{chain.FILE}, line {link.number}"


def _broken(link: str, file: str, recorded: str, found: str) -> Check:
    return Check(link=link, state=BROKEN, file=file, recorded=recorded, found=found)
