"""Checks that the files of a run are those that it wrote and read, and replays a part of it.

    python -m official_lite.tools verify runs/digits
    python -m official_lite.tools verify runs/digits --no-replay
    python -m official_lite.tools verify runs/mine --step=400 --import=my_tasks.py

The command prints one line for each link: the chain, each record and checkpoint in it, the config,
run.json, the input files, the code and the installed packages. It then trains again from the newest
checkpoint that has a successor to that successor, in a temporary directory, and compares the two
bit for bit. The exit code is 0 if all links hold, and 8 otherwise.
"""

import argparse
import dataclasses
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence

from official_lite.checkpoint import commit
from official_lite.common import errors, files, terminal
from official_lite.modeling.hyperparams import yaml_io
from official_lite.run import model_dir_lock
from official_lite.tools import checks, listing, sources

__all__ = ["add_arguments", "choose", "needs_a_cluster", "replay", "run"]

# What a run reads from its model directory besides its checkpoints: the chosen execution mode, and
# the batches that a recovery skips.
_STATE = ("execution.json", "recovery.json")

_OF_SEVERAL_PROCESSES = ("multi_worker_mirrored", "parameter_server", "tpu")

_POLL_SECONDS = 0.05
_MOST_CHARACTERS = 2000


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
    if not files.exists(args.model_dir):
        raise errors.ConfigValueError(f"There is no directory {args.model_dir}.")
    if model_dir_lock.is_held(args.model_dir):
        raise errors.ModelDirBusyError(
            f"A run is training in {args.model_dir}. Verify it when it has ended."
        )
    results = []
    for check in checks.check(args.model_dir):
        results.append(check)
        _print(check, args)
    if not args.no_replay:
        results.append(_replay(args, is_sound=all(c.state != checks.BROKEN for c in results)))
        _print(results[-1], args)
    is_broken = any(check.state == checks.BROKEN for check in results)
    is_complete = args.no_replay or results[-1].state == checks.HOLDS
    if args.json:
        rows = [dataclasses.asdict(check) for check in results]
        listing.print_json({"holds": is_complete and not is_broken, "checks": rows})
    if is_broken or not is_complete:
        return int(errors.ExitCode.UNVERIFIED)
    return int(errors.ExitCode.DONE)


def _replay(args: argparse.Namespace, *, is_sound: bool) -> checks.Check:
    if not is_sound:
        return _unchecked("a link before it is broken")
    if needs_a_cluster(args.model_dir):
        return _unchecked("a run of several processes can't be replayed; pass --no-replay")
    segment = choose(checks.find_segments(args.model_dir), args.step)
    if segment is None:
        return _unchecked(
            "no two checkpoints that follow each other are kept; see `trainer.max_to_keep`"
        )
    before, after = segment
    unequal = replay(args.model_dir, before, after, args)
    steps = f"from step {commit.step_of(before)} to {commit.step_of(after)}"
    if unequal:
        return checks.Check(
            link="replay",
            state=checks.BROKEN,
            file=after,
            recorded=f"the variables {', '.join(unequal[:5])}{' …' if unequal[5:] else ''}",
            found=f"other bits after a training {steps}",
        )
    return checks.Check(link="replay", note=f"{steps}: equal bit for bit")


def _unchecked(note: str) -> checks.Check:
    return checks.Check(link="replay", state=checks.UNCHECKED, note=note)


def _print(check: checks.Check, args: argparse.Namespace) -> None:
    if not args.json:
        print(terminal.escape_controls(str(check)), flush=True)


def needs_a_cluster(run_dir: str) -> bool:
    """Return whether several processes have trained together, according to the config."""
    config = yaml_io.read_yaml(os.path.join(run_dir, "params.yaml"))
    return config.get("runtime", {}).get("distribution_strategy") in _OF_SEVERAL_PROCESSES


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
        raise errors.CheckpointError(
            f"No checkpoint at step {step} is kept together with its successor. --step can be "
            f"{', '.join(begins) or 'nothing here'}."
        )
    return found[-1]


def replay(run_dir: str, before: str, after: str, args: argparse.Namespace) -> list[str]:
    """Train again from one checkpoint to another one.

    The directory of the run is only read. Metrics are not written, because a writer may send them
    to a service.

    Args:
        run_dir: The model directory.
        before: The checkpoint to start from.
        after: The next checkpoint of the run.
        args: The arguments of `verify`.

    Returns:
        The names of the variables that are not equal bit for bit.

    Raises:
        errors.ConfigError: The run can't be started; see `sources.train_command`.
        errors.OfficialLiteError: The training ended before the checkpoint.
    """
    from official_lite.checkpoint import inspection

    step = commit.step_of(after)
    command = sources.train_command(run_dir, args)
    with tempfile.TemporaryDirectory() as directory:
        model_dir = os.path.join(directory, "run")
        files.makedirs(model_dir)
        paths = [commit.path_of(before), *commit.list_files(before)]
        paths += [os.path.join(run_dir, name) for name in _STATE]
        for path in filter(files.exists, paths):
            shutil.copy(path, model_dir)
        command += [
            f"--model_dir={model_dir}",
            # Other fields stay as they are: the length of the training may determine its schedule.
            f"--set=trainer.checkpoint_interval={step}",
            "--set=trainer.writers=[]",
        ]
        replayed = os.path.join(model_dir, os.path.basename(after))
        _train_until(command, commit.path_of(replayed), os.path.join(directory, "log"))
        return inspection.find_unequal_bits(after, replayed)


def _train_until(command: Sequence[str], path: str, log: str) -> None:
    """Run a command until a file exists, and kill it then."""
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
            said = file.read()[-_MOST_CHARACTERS:]
        raise errors.OfficialLiteError(
            f"The replay ended before it had saved {os.path.basename(path)}:\n{said}"
        )
