"""The replay of a segment of a run: from a checkpoint to the next one, in a temporary directory."""

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence

from official_lite.checkpoint import commit
from official_lite.common import errors, files
from official_lite.modeling.hyperparams import yaml_io
from official_lite.tools import run_source

__all__ = ["choose", "needs_a_cluster", "replay"]

# What a run reads from its model directory besides its checkpoints: the chosen execution mode, and
# the batches that a recovery skips.
_STATE = ("execution.json", "recovery.json")

_OF_SEVERAL_PROCESSES = ("multi_worker_mirrored", "parameter_server", "tpu")

_POLL_SECONDS = 0.05
_MOST_CHARACTERS = 2000


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
        errors.ConfigError: The run can't be started; see `run_source.train_command`.
        errors.OfficialLiteError: The training ended before the checkpoint.
    """
    from official_lite.checkpoint import inspection

    step = commit.step_of(after)
    command = run_source.train_command(run_dir, args)
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
