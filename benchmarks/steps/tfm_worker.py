"""The Model Garden as in its `train.py`.

python -m benchmarks.steps.tfm_worker --model=tiny_mlp
"""

import tempfile

import tf_keras
from absl import logging
from official.common import distribute_utils
from official.core import base_task, train_lib
from official.core import config_definitions as cfg
from official.modeling import optimization

from benchmarks.steps import models, tasks, worker


def main() -> None:
    args = worker.parse_args()
    logging.set_verbosity(logging.ERROR)
    intervals = models.intervals(args.steps)
    params = tasks.create_params(cfg, optimization, args.model, intervals[0])
    strategy = distribute_utils.get_distribution_strategy(
        distribution_strategy=params.runtime.distribution_strategy,
        all_reduce_alg=params.runtime.all_reduce_alg,
        num_gpus=params.runtime.num_gpus,
    )
    task_class = tasks.create_task_class(base_task.Task, tf_keras)
    last_logs: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as model_dir, strategy.scope():
        runner = train_lib.OrbitExperimentRunner(
            strategy,
            task_class(params.task, args.model),
            "train",
            params,
            model_dir,
            # The controller does not store its reports, so an action stores the last one.
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
