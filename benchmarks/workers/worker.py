"""One of several processes: a worker of the cluster in `TF_CONFIG` or, without it, independent.

python -m benchmarks.workers.worker --width=512 --steps=50
"""

import argparse
import os

from absl import logging

from benchmarks import toy_runs, turns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    turns.add_arguments(parser)
    args = parser.parse_args()
    rounds = turns.Rounds.from_args(args)
    logging.set_verbosity(logging.ERROR)
    params = toy_runs.create_params()
    params.runtime.execution = "graph"
    in_cluster = "TF_CONFIG" in os.environ
    params.runtime.distribution_strategy = "multi_worker_mirrored" if in_cluster else "off"
    task = toy_runs.ToyTask(
        lambda: toy_runs.build_mlp(args.width), toy_runs.regression_batches(args.width)
    )
    with toy_runs.open_run(task, params) as runner:
        for measured in rounds:
            with measured:
                toy_runs.train_further(runner.controller, args.steps)
                measured.note(steps=args.steps)


if __name__ == "__main__":
    main()
