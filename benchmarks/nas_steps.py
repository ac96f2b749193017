"""A benchmark of search steps per second on the model of `nas/digits`, against PyTorch.

python -m benchmarks.nas_steps --python torch=/venvs/torch/bin/python
"""

import argparse
import pathlib
import statistics
import subprocess

import tensorflow as tf

from benchmarks import paired
from experiments.nas.digits import task
from official_lite.core import exp_factory, trainer_factory
from official_lite.run import runtime

__all__ = ["main"]

_WORKER = pathlib.Path(__file__).with_name("nas_torch.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True, help="torch=<interpreter>")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--torch_threads", type=int, default=2)
    options = parser.parse_args()
    interpreter = options.python.removeprefix("torch=")
    with subprocess.Popen(
        [interpreter, str(_WORKER), str(options.torch_threads)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        for algorithm in ("darts", "spos"):
            _compare(algorithm, worker, options.steps, options.rounds)
        worker.kill()


def _compare(algorithm: str, worker: subprocess.Popen[str], steps: int, rounds: int) -> None:
    params = exp_factory.get_exp_config(f"nas/digits_{algorithm}")
    strategy = runtime.build_strategy(params.runtime)
    with strategy.scope(), runtime.seed_and_precision(params.runtime):
        digits = task.NasDigitsTask(params.task)
        trainer = trainer_factory.create_trainer(params, digits, train=True, evaluate=False)

    def torch() -> None:
        print(algorithm, steps, file=worker.stdin, flush=True)
        next(iter(worker.stdout or ()))

    seconds = paired.time_in_turn(
        {"torch": torch, "official_lite": lambda: trainer.train(tf.constant(steps))}, rounds
    )
    for name, values in seconds.items():
        print(f"{algorithm:6} {name:14} {steps / statistics.median(values):8.0f} steps/s")
    ratio = paired.ratio(seconds, "torch", "official_lite")
    print(f"{algorithm:6} torch's time / ours {ratio:6.2f}", flush=True)


if __name__ == "__main__":
    main()
