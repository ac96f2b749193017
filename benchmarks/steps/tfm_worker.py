"""The Model Garden as in its `train.py`.

python -m benchmarks.steps.tfm_worker --model=tiny_mlp
"""

import argparse
import tempfile

import tf_keras
from absl import logging
from official.common import distribute_utils
from official.core import base_task, train_lib, train_utils
from official.core import config_definitions as cfg
from official.modeling import optimization

from benchmarks.steps import models, tasks, worker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--trainer_only", action="store_true", help="Call the trainer itself, without a runner."
    )
    args = worker.parse_args(parser)
    logging.set_verbosity(logging.ERROR)
    intervals = models.intervals(args.steps)
    params = tasks.create_params(cfg, optimization, args.model, intervals[0])
    strategy = distribute_utils.get_distribution_strategy(
        distribution_strategy=params.runtime.distribution_strategy,
        all_reduce_alg=params.runtime.all_reduce_alg,
        num_gpus=params.runtime.num_gpus,
    )
    task = tasks.create_task_class(base_task.Task, tf_keras)(params.task, args.model)
    if args.trainer_only:
        with strategy.scope():
            trainer = train_utils.create_trainer(params, task, train=True, evaluate=False)
            tasks.call_trainer(args, trainer)
        return
    last_logs: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as model_dir, strategy.scope():
        runner = train_lib.OrbitExperimentRunner(
            strategy,
            task,
            "train",
            params,
            model_dir,
            # The controller does not store its logs, so use an action to store the last ones.
            train_actions=[last_logs.update],
        )
        step = 0
        for measured in args.rounds:
            with measured:
                step += args.steps
                runner.controller.train(step, checkpoint_at_completion=False)
                loss, metric = float(last_logs["training_loss"]), float(last_logs["metric"])
                measured.note(steps=args.steps, loss=loss, metric=metric)


if __name__ == "__main__":
    main()
