"""A benchmark that repeatedly kills training on each row source, and compares the results.

For each source, a training process kills itself (SIGKILL) at a random step after new checkpoints,
and is restarted. At the end, its last checkpoint and its records must equal those of an
uninterrupted run bit for bit. The processes are forks of this one, which has already imported
TensorFlow.

python -m benchmarks.source_kills --kills 10
"""

import argparse
import contextlib
import functools
import os
import pathlib
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from benchmarks import chaos, data_sources
from official_lite import orbit
from official_lite.core import base_task, input_reader, train_lib
from official_lite.core import config_definitions as cfg

_NUM_ROWS = 60_000
_NUM_FILES = 2
_BATCH_SIZE = 256
_STEPS_BETWEEN_CHECKPOINTS = 20


class RowsTask(base_task.Task):
    """A task whose weights depend on the order of the rows: a logistic regression."""

    def build_model(self) -> keras.Model:
        dense = keras.layers.Dense(1, kernel_initializer="zeros")
        return keras.Sequential([keras.Input((8,)), dense])

    def build_inputs(
        self, params: cfg.DataConfig, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        parse = _parse_records if params.source == "array_record" else _parse_columns
        reader = input_reader.InputReader(params, parser_fn=parse)
        return reader.read(input_context)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, model_outputs)
        return tf.reduce_mean(losses)


@input_reader.takes_batches
def _parse_columns(row: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    numbers = [tf.cast(row[f"category_{i}"], tf.float32) / 100_000 for i in range(8)]
    return tf.stack(numbers, axis=-1), tf.cast(row["label"], tf.float32)[:, tf.newaxis]


@input_reader.takes_batches
def _parse_records(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    numbers = tf.cast(tf.io.decode_raw(records, tf.int64), tf.float32)
    return numbers[:, 13:21] / 100_000, tf.cast(numbers[:, 30:31] > 50_000, tf.float32)


def create_params(source: str, input_path: str, train_steps: int) -> cfg.ExperimentConfig:
    params = cfg.ExperimentConfig(
        task=cfg.TaskConfig(
            train_data=cfg.DataConfig(
                input_path=input_path,
                source=source,
                is_training=True,
                global_batch_size=_BATCH_SIZE,
                shuffle_buffer_size=10_000,
                label_column="" if source == "array_record" else "label",
            )
        ),
        trainer=cfg.TrainerConfig(
            train_steps=train_steps,
            steps_per_loop=5,
            checkpoint_interval=_STEPS_BETWEEN_CHECKPOINTS,
            writers=["jsonl"],
        ),
    )
    params.override(
        {
            "runtime": {"distribution_strategy": "off", "execution": "graph", "seed": 5},
            "trainer": {
                "optimizer_config": {
                    "optimizer": {"type": "adam"},
                    "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.01}},
                }
            },
        }
    )
    return params


class Kill(orbit.Hook):
    """A hook that kills this process at a step.

    Args:
        step: The step.
    """

    def __init__(self, step: int) -> None:
        self._step = step

    def build_trigger(self) -> orbit.triggers.Trigger:
        return orbit.triggers.AtSteps([self._step])

    def after_step(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def train(
    source: str,
    input_path: str,
    train_steps: int,
    model_dir: pathlib.Path,
    hooks: Sequence[orbit.Hook] = (),
) -> None:
    """Train to the last step, starting from the latest checkpoint in `model_dir`, if any."""
    params = create_params(source, input_path, train_steps)
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        task = RowsTask(params.task)
    train_lib.run_experiment(strategy, task, "train", params, str(model_dir), hooks=hooks)


def write_files(source: str, folder: pathlib.Path) -> None:
    """Write the files `rows-*` to a new folder."""
    write = data_sources.FORMATS[source][0]
    columns = data_sources.create_columns(_NUM_ROWS)
    folder.mkdir(parents=True)
    for index in range(_NUM_FILES):
        part = {name: column[index::_NUM_FILES] for name, column in columns.items()}
        write(part, folder / f"rows-{index}")


def fork(work: Callable[[], object], log: pathlib.Path) -> int:
    """Call `work` in a fork of this process, and return the process id of the fork."""
    if pid := os.fork():
        return pid
    os.setsid()
    code = 1
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def run(work: Callable[[], object], log: pathlib.Path, exit_code: int = 0) -> None:
    """Call `work` in a fork of this process, and wait until the fork ends.

    Raises:
        RuntimeError: The process ended with another exit code.
    """
    _, status = os.waitpid(fork(work, log), 0)
    if (ended := os.waitstatus_to_exitcode(status)) != exit_code:
        raise RuntimeError(
            f"The forked process ended with exit code {ended}; expected {exit_code}:\n"
            f"{log.read_text()[-3000:]}"
        )


def kill_and_compare(
    source: str, folder: pathlib.Path, kills: int, seed: int = 0
) -> tuple[list[int], list[str]]:
    """Train twice on a source: once without interruption, and once with repeated kills.

    Returns:
        The steps at which training was killed, and the names of the values that differ.
    """
    pattern = str(folder / "data" / "rows-*")
    folder.mkdir(parents=True, exist_ok=True)
    # The libraries start threads, which a fork does not inherit. They are therefore called only in
    # forks.
    run(lambda: write_files(source, folder / "data"), folder / "write.log")
    # Each process saves two checkpoints before it is killed. The kill may interrupt the second
    # save, but the first checkpoint is complete by then.
    interval, random_steps = _STEPS_BETWEEN_CHECKPOINTS, random.Random(seed)
    steps = [(3 * kill + 2) * interval + random_steps.randint(1, interval) for kill in range(kills)]
    train_steps = (3 * kills + 1) * interval
    unbroken, broken = folder / "unbroken", folder / "broken"
    run(functools.partial(train, source, pattern, train_steps, unbroken), folder / "unbroken.log")
    train_broken = functools.partial(train, source, pattern, train_steps, broken)
    log = folder / "broken.log"
    for step in steps:
        run(functools.partial(train_broken, [Kill(step)]), log, exit_code=-signal.SIGKILL)
    run(train_broken, log)
    return steps, chaos.differences(chaos.what_is_left(unbroken), chaos.what_is_left(broken))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = list(data_sources.FORMATS)
    parser.add_argument("--formats", nargs="+", choices=names, default=names)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    num_unequal = 0
    for source in args.formats:
        with contextlib.ExitStack() as stack:
            root = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
            started = time.monotonic()
            steps, unequal = kill_and_compare(source, root / source, args.kills, args.seed)
            verdict = f"DIFFERS in {', '.join(unequal[:4])}" if unequal else "equal bit for bit"
            num_unequal += bool(unequal)
            seconds = time.monotonic() - started
            print(
                f"{source}: {len(steps)} kills after the steps {steps}: {verdict} ({seconds:.0f} s)"
            )
            sys.stdout.flush()
    return 1 if num_unequal else 0


if __name__ == "__main__":
    sys.exit(main())
