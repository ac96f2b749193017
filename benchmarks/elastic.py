"""A comparison of training runs on different numbers of replicas and of processes.

python -m benchmarks.elastic --execution graph -- --experiment=language/char_gpt
python -m benchmarks.elastic --execution xla -- --experiment=vision/digits_cnn --set=...

It trains with four virtual replicas, in one process with 1, 2 and 4 replicas and in 1, 2 and 4
processes. For each run, it prints the SHA-256 of all tensors of the last and the best
checkpoint and of all records. Wall-clock values are ignored. The arguments after `--` are those of
`train.py`.
"""

import argparse
import hashlib
import pathlib
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks import chaos

COUNTS = (1, 2, 4)


def settings() -> dict[str, tuple[int, list[str]]]:
    """Return the number of processes and the arguments of each training run, by its name."""
    found = {}
    for count in COUNTS:
        devices = ",".join(f"CPU:{index}" for index in range(count))
        mirrored = [
            "--set=runtime.distribution_strategy=mirrored",
            f"--set=runtime.devices=[{devices}]",
        ]
        found[f"{count} replicas"] = (1, mirrored)
    for count in COUNTS:
        workers = ["--set=runtime.distribution_strategy=multi_worker_mirrored"]
        found[f"{count} processes"] = (count, workers)
    return found


def checksum(left: Mapping[str, Any]) -> str:
    """Return the SHA-256 of what `chaos.what_is_left` returned."""
    total = hashlib.sha256()
    for name in sorted(left):
        value = left[name]
        content = value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
        total.update(name.encode() + b"\0" + content + b"\0")
    return total.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--execution", default="graph", choices=("graph", "xla"))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("arguments", nargs="+", help="The arguments of train.py.")
    args = parser.parse_args()
    common = [
        "--mode=train_and_eval",
        f"--set=runtime.execution={args.execution}",
        f"--set=trainer.train_steps={args.steps}",
        f"--set=trainer.validation_interval={args.steps // 2}",
        f"--set=trainer.checkpoint_interval={args.steps // 2}",
        "--set=trainer.virtual_replicas=4",
        *args.arguments,
    ]
    checksums = set()
    with tempfile.TemporaryDirectory(prefix="elastic_") as root:
        for name, (processes, arguments) in settings().items():
            model_dir = pathlib.Path(root) / name.replace(" ", "_")
            started = time.monotonic()
            chaos.Training([*common, *arguments], model_dir, processes).run()
            left = chaos.what_is_left(model_dir)
            checksums.add(checksum(left))
            seconds = time.monotonic() - started
            print(f"{name}: {checksum(left)}, {len(left)} values, {seconds:.0f} s", flush=True)
    print("equal" if len(checksums) == 1 else f"{len(checksums)} different results")
    return len(checksums) > 1


if __name__ == "__main__":
    sys.exit(main())
