"""A benchmark that repeatedly kills training and compares the results with an uninterrupted run.

python -m benchmarks.chaos --runs 20 -- --experiment=vision/digits_cnn --mode=train_and_eval
python -m benchmarks.chaos --workers 2 --kills 3 -- --experiment=mine --import=my_pkg.tasks ...

python -m benchmarks.chaos --elastic 1,2,4 --kills 2 -- --experiment=vision/digits_cnn ...

With `--elastic`, every start has a random number of workers (set `trainer.virtual_replicas` and
`runtime.distribution_strategy=multi_worker_mirrored`); the uninterrupted run has the first of the
listed numbers. The arguments after `--` are those of `train.py`, without `--model_dir`. The first
run is not interrupted. Each further run is killed (SIGKILL) `--kills` times, each time at a random
moment near a random step, and restarted until it ends. Its last and its best checkpoint and the
records of `metrics.json`, CSV tables and event files must equal those of the uninterrupted run bit
for bit, with each step recorded once. Wall-clock values and the order of rows in lookup tables are
ignored.
"""

import argparse
import contextlib
import csv
import dataclasses
import itertools
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorboard.backend.event_processing import event_accumulator, event_file_loader

# Keys of metric records and of checkpoints whose values may differ between two equal runs.
_CLOCKED = ("steps_per_second", "wall_time")
_BOOKKEEPING = ("_CHECKPOINTABLE_OBJECT_GRAPH", "save_counter/.ATTRIBUTES/VARIABLE_VALUE")

# The time that workers may take to notice that another worker was killed.
_SECONDS_TO_NOTICE = 60.0

# A process that runs longer than this after its start is considered hung.
_MAX_SECONDS = 1800.0

# A run that ends before its last kill is repeated, up to this number of attempts.
_MAX_ATTEMPTS = 10


@dataclasses.dataclass(frozen=True, order=True)
class Kill:
    """The moment at which a training run is killed.

    Attributes:
        step: The kill waits for a record of this or a later step; with 0, for the start of the
            processes.
        next_step: The kill happens at the latest when a record of this or a later step appears,
            because the run may be faster than the one by which `seconds` was drawn.
        seconds: The time between the event of `step` and the kill.
    """

    step: int
    next_step: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Training:
    """A training run in its model directory, with one process or several workers.

    Attributes:
        arguments: The arguments of `train.py`.
        model_dir: The model directory.
        workers: The number of processes.
        kills_one: Whether only one worker is killed, and the others have to end by themselves.
    """

    arguments: Sequence[str]
    model_dir: pathlib.Path
    workers: int = 1
    kills_one: bool = False

    def run(self, kill: Kill | None = None) -> bool:
        """Run all processes until they end or are killed, and return whether they ended.

        Args:
            kill: When to kill the processes.

        Raises:
            RuntimeError: If a process failed without being killed, or took too long.
        """
        log = self.model_dir.with_suffix(".log")
        started = time.time()
        kill_at = started + kill.seconds if kill and not kill.step else None
        with log.open("ab") as output, contextlib.ExitStack() as stack:
            processes = [
                stack.enter_context(self._start(index, environment, output))
                for index, environment in enumerate(_environments(self.workers))
            ]
            stack.callback(_kill, processes)
            while any(process.poll() is None for process in processes):
                now = time.time()
                step = last_step(self.model_dir, started) if kill else 0
                if kill and step >= kill.next_step:
                    kill_at = now
                elif kill and not kill_at and step >= kill.step:
                    kill_at = now + kill.seconds
                if kill_at and now >= kill_at:
                    if self.kills_one:
                        _kill(processes[-1:])
                        return not _have_noticed(processes[:-1])
                    return False
                if now > started + _MAX_SECONDS:
                    raise RuntimeError(
                        f"The training run takes more than {_MAX_SECONDS:g} s; see {log}."
                    )
                time.sleep(0.002)
            codes = [process.wait() for process in processes]
        if any(codes):
            raise RuntimeError(
                f"The training run ended with the exit codes {codes}; see {log}:\n"
                f"{log.read_text()[-2000:]}"
            )
        return True

    def _start(
        self, index: int, environment: Mapping[str, str], output: Any
    ) -> subprocess.Popen[bytes]:
        command = [sys.executable, "train.py", *self.arguments, f"--model_dir={self.model_dir}"]
        return subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdout=subprocess.DEVNULL,
            stderr=output if index == 0 else subprocess.DEVNULL,
            start_new_session=True,
        )


def _environments(workers: int) -> Iterator[dict[str, str]]:
    """Yield the `TF_CONFIG` variable of each worker, or no variable for a single process."""
    if workers == 1:
        yield {}
        return
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(workers)]
    for index in range(workers):
        task = {"type": "worker", "index": index}
        yield {"TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": task})}


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _kill(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _have_noticed(processes: Sequence[subprocess.Popen[bytes]]) -> bool:
    """Return True if all other workers failed, as expected, and False if all had already ended."""
    deadline = time.monotonic() + _SECONDS_TO_NOTICE
    codes = [process.wait(max(0.1, deadline - time.monotonic())) for process in processes]
    if any(codes) and not all(codes):
        raise RuntimeError(
            f"After a worker was killed, the other workers ended with the exit codes {codes}; "
            "expected all of them to fail."
        )
    return all(codes)


def last_step(model_dir: pathlib.Path, since: float) -> int:
    """Return the step of the last record; 0 if it was not written after the time `since`."""
    path = model_dir / "metrics.json"
    # Skip the text after the last line break, because it is still being written.
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    last = json.loads(lines[-1]) if lines else {"wall_time": since}
    return int(last["step"]) if last["wall_time"] > since else 0


def what_is_left(model_dir: pathlib.Path) -> dict[str, Any]:
    """Return the tensors of a run's last and best checkpoint, and its records."""
    left = {**_tensors("last", model_dir), **_metrics(model_dir), **_tables(model_dir)}
    left |= _events(model_dir)
    for info in sorted(model_dir.glob("*/info.json")):
        name = info.parent.name
        left |= _tensors(name, info.parent)
        left[f"{name}/info"] = _unclocked(json.loads(info.read_text()))
        left[f"{name}/checkpoints"] = sorted(path.name for path in info.parent.glob("*.index"))
    left["temporary files"] = sorted(path.name for path in model_dir.rglob("*.tmp"))
    return left


def _tensors(name: str, directory: pathlib.Path) -> dict[str, Any]:
    path = tf.train.latest_checkpoint(str(directory))
    if path is None:
        return {}
    reader = tf.train.load_checkpoint(path)
    keys = [key for key in reader.get_variable_to_shape_map() if key not in _BOOKKEEPING]
    tensors = _with_sorted_tables({f"{name}/{key}": reader.get_tensor(key) for key in keys})
    return {f"{name}/path": pathlib.Path(path).name, **tensors}


def _with_sorted_tables(tensors: dict[str, Any]) -> dict[str, Any]:
    """Sort the rows of lookup tables by their keys, because a table has no order.

    A dense table also saves its empty buckets. They are dropped here, because they all have the
    same key, and their values are meaningless.
    """
    for name, keys in tensors.items():
        if name.endswith("/table-keys"):
            values = name.removesuffix("keys") + "values"
            axis = 0 if keys.ndim > 1 else None
            _, rows, counts = np.unique(keys, axis=axis, return_index=True, return_counts=True)
            rows = rows[counts == 1]
            tensors |= {name: keys[rows], values: tensors[values][rows]}
    return tensors


def _metrics(model_dir: pathlib.Path) -> dict[str, Any]:
    """Return lists of metric records by split and step; a correct run has one record per list."""
    records: dict[str, Any] = {}
    path = model_dir / "metrics.json"
    for line in path.read_text().splitlines() if path.exists() else ():
        record = json.loads(line)
        key = f"metrics/{record.get('split')}/{record.get('step')}"
        records.setdefault(key, []).append(_unclocked(record))
    return records


def _tables(model_dir: pathlib.Path) -> dict[str, Any]:
    """Return the rows of the CSV tables by table and step."""
    rows: dict[str, Any] = {}
    for path in sorted(model_dir.glob("metrics_*.csv")):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                rows.setdefault(f"{path.stem}/{row['step']}", []).append(_unclocked(row))
    return rows


def _events(model_dir: pathlib.Path) -> dict[str, Any]:
    """Return the values of each tag, as TensorBoard reads them and as stored in the files."""
    values: dict[str, Any] = {}
    for folder in sorted({path.parent for path in model_dir.rglob("*tfevents*")}):
        name = folder.relative_to(model_dir)
        read = event_accumulator.EventAccumulator(str(folder), size_guidance={"tensors": 0})
        for tag in read.Reload().Tags()["tensors"]:
            found = [(e.step, e.tensor_proto.SerializeToString()) for e in read.Tensors(tag)]
            values[f"events/{name}/{tag}"] = _without_values(tag, found)
        for path in sorted(folder.glob("*tfevents*")):
            for event in event_file_loader.EventFileLoader(str(path)).Load():
                for value in event.summary.value:
                    found = [(event.step, value.tensor.SerializeToString())]
                    key = f"event files/{name}/{value.tag}"
                    values.setdefault(key, []).extend(_without_values(value.tag, found))
    return values


def _without_values(tag: str, found: Sequence[tuple[int, bytes]]) -> list[Any]:
    """Return a tag's steps and values, or only its steps if the values depend on the time."""
    return [step for step, _ in found] if tag in _CLOCKED else list(found)


def _unclocked(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in _CLOCKED}


def differences(expected: Mapping[str, Any], got: Mapping[str, Any]) -> list[str]:
    """Return the names of the values that are not equal bit for bit."""
    return [
        name
        for name in sorted(expected.keys() | got.keys())
        if name not in expected or name not in got or not _are_equal(expected[name], got[name])
    ]


def _are_equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.tobytes() == other.tobytes()
    return bool(one == other)


def bytes_in(directory: pathlib.Path) -> int:
    """Return the size of all files in a directory, in bytes."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--kills", type=int, default=1, help="The number of kills of each run.")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--elastic", help="The numbers of workers from which each start draws one, such as 1,2,4."
    )
    parser.add_argument(
        "--kill_one", action="store_true", help="Kill only one worker; the others must then fail."
    )
    parser.add_argument("--seed", default="0", help="The seed of the kills: any text.")
    parser.add_argument("--keep", action="store_true", help="Keep the directories.")
    parser.add_argument("arguments", nargs="+", help="The arguments of train.py.")
    args = parser.parse_args()
    root = pathlib.Path(tempfile.mkdtemp(prefix="chaos_"))
    moments = random.Random(args.seed)
    sizes = [int(size) for size in args.elastic.split(",")] if args.elastic else [args.workers]
    print(f"In {root}")
    unbroken = Training(args.arguments, root / "unbroken", sizes[0], args.kill_one)
    started = time.time()
    unbroken.run()
    seconds = time.time() - started
    times = _record_times(unbroken.model_dir, started)
    expected = what_is_left(unbroken.model_dir)
    print(f"uninterrupted run: {seconds:.1f} s, {len(expected)} tensors and records")
    num_unequal = num_kills = 0
    for index in range(args.runs):
        training = dataclasses.replace(unbroken, model_dir=root / f"run_{index}")
        for _ in range(_MAX_ATTEMPTS):
            _copy_execution(unbroken.model_dir, training.model_dir)
            kills = sorted(_draw_kill(times, moments) for _ in range(args.kills))
            workers = [moments.choice(sizes) for _ in range(args.kills + 1)]
            steps = _run_killed(training, kills, workers)
            if steps is not None:
                break
            shutil.rmtree(training.model_dir)
        else:
            raise RuntimeError(
                f"{_MAX_ATTEMPTS} runs ended before their last kill. Raise `trainer.train_steps`, "
                "or lower --kills."
            )
        num_kills += len(steps)
        unequal = differences(expected, what_is_left(training.model_dir))
        num_unequal += bool(unequal)
        size = bytes_in(training.model_dir) / max(1, bytes_in(unbroken.model_dir))
        verdict = f"DIFFERS in {len(unequal)}: {', '.join(unequal[:4])}" if unequal else "equal"
        on_workers = f" on {workers} workers" if args.elastic else ""
        print(
            f"run {index}: {len(steps)} kills after the steps {steps}{on_workers}, "
            f"{verdict}; {size:.2f} times the size of the uninterrupted run",
            flush=True,
        )
        if not unequal and not args.keep:
            shutil.rmtree(training.model_dir)
    num_equal = args.runs - num_unequal
    print(
        f"{num_kills} kills; {num_equal} of {args.runs} runs equal the uninterrupted one, "
        "bit for bit"
    )
    if not num_unequal and not args.keep:
        shutil.rmtree(root)
    return 1 if num_unequal else 0


def _record_times(model_dir: pathlib.Path, started: float) -> list[tuple[int, float]]:
    """Return the step of each record, with the seconds from the start of the run to the record."""
    # Kills start only after `params.yaml` is written, because a kill during the imports would test
    # nothing.
    times = {0: (model_dir / "params.yaml").stat().st_mtime - started}
    path = model_dir / "metrics.json"
    if not path.exists():
        raise RuntimeError("The run wrote no metrics.json. Add `jsonl` to `trainer.writers`.")
    for line in path.read_text().splitlines():
        record = json.loads(line)
        times.setdefault(record["step"], record["wall_time"] - started)
    return sorted(times.items())


def _draw_kill(times: Sequence[tuple[int, float]], moments: random.Random) -> Kill:
    """Draw a step, and then a moment between the last record before it and the next record."""
    drawn = moments.uniform(0, times[-1][0])
    pairs = itertools.pairwise(times)
    (step, begin), (next_step, end) = next(pair for pair in pairs if pair[1][0] >= drawn)
    return Kill(step, next_step, moments.uniform(0, end - begin) + (0 if step else begin))


def _run_killed(
    training: Training, kills: Sequence[Kill], workers: Sequence[int]
) -> list[int] | None:
    """Kill a training run repeatedly, and then let it run to its end.

    Args:
        training: The training run.
        kills: One kill for each start except the last.
        workers: The number of workers of each start.

    Returns:
        The step of the last record before each kill; None if the run ended before a kill.
    """
    steps = []
    for kill, count in zip(kills, workers, strict=False):
        started = time.time()
        if dataclasses.replace(training, workers=count).run(kill):
            return None
        steps.append(last_step(training.model_dir, started))
    dataclasses.replace(training, workers=workers[-1]).run()
    return steps


def _copy_execution(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copy the execution modes of another run, because results of modes differ in the last bit."""
    target.mkdir()
    if (source / "execution.json").exists():
        shutil.copy(source / "execution.json", target)


if __name__ == "__main__":
    sys.exit(main())
