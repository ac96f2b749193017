"""official_lite as in `train.py`: trainer, controller and writers of the default config.

python -m benchmarks.steps.official_lite_worker --model=tiny_mlp --set=runtime.execution=xla
python -m benchmarks.steps.official_lite_worker --model=tiny_mlp --trainer_only
"""

import argparse
import tempfile

import keras
from absl import logging

from benchmarks.steps import models, tasks, worker
from official_lite.core import base_task, train_lib, train_utils
from official_lite.core import config_definitions as cfg
from official_lite.modeling import hyperparams, optimization
from official_lite.run import runtime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE")
    parser.add_argument(
        "--trainer_only", action="store_true", help="Call the trainer itself, without a runner."
    )
    args = worker.parse_args(parser)
    logging.set_verbosity(logging.ERROR)
    intervals = models.intervals(args.steps)
    params = tasks.create_params(cfg, optimization, args.model, intervals[0])
    for assignment in args.set:
        hyperparams.override_params_dict(params, assignment, is_strict=True)
    strategy = runtime.build_strategy(params.runtime)
    task = tasks.create_task_class(base_task.Task, keras)(params.task, args.model)
    if args.trainer_only:
        with strategy.scope():
            trainer = train_utils.create_trainer(params, task, train=True, evaluate=False)
            tasks.call_trainer(args, trainer, trainer.choose_execution)
        return
    with tempfile.TemporaryDirectory() as model_dir, strategy.scope():
        runner = train_lib.OrbitExperimentRunner(strategy, task, "train", params, model_dir)
        controller, step = runner.controller, 0
        for measured in args.rounds:
            with measured:
                if not step:
                    # Called before the first step, as in `train.py`, but within a round, so that
                    # the other workers are idle.
                    runner.choose_execution()
                step += args.steps
                controller.train(step, checkpoint_at_completion=False)
                logs = controller.train_logs
                loss, metric = float(logs["training_loss"]), float(logs["metric"])
                measured.note(steps=args.steps, loss=loss, metric=metric)
        runner.close()


if __name__ == "__main__":
    main()
