"""Trains or evaluates a registered experiment.

python train.py --experiment=vision/digits_cnn --mode=train_and_eval --model_dir=/tmp/digits
"""

import tempfile

from absl import flags

import registry_imports  # noqa: F401  (imported for its registrations)
from official_lite.common import app
from official_lite.common import flags as experiment_flags
from official_lite.common.app import lasting_imports
from official_lite.core import config_definitions, train_utils

FLAGS = flags.FLAGS


def main(_: list[str]) -> None:
    train_utils.import_modules(FLAGS["import"].value)
    train_utils.parse_gin_flags(FLAGS)
    params = train_utils.parse_configuration(FLAGS, print_return=not FLAGS.print_config)
    if FLAGS.print_config:
        print(train_utils.to_yaml(params) + train_utils.describe_execution(FLAGS.model_dir), end="")
    elif FLAGS.dry_run:
        with tempfile.TemporaryDirectory() as model_dir:
            run(params, "train_and_eval", model_dir)
    elif not train_utils.is_finished(params, FLAGS.mode, FLAGS.model_dir):
        train_utils.check_model_dir(FLAGS.model_dir)
        run(params, FLAGS.mode, FLAGS.model_dir)


def run(params: config_definitions.ExperimentConfig, mode: str, model_dir: str) -> None:
    if mode == "search":
        from official_lite import search

        search.run_search(params, model_dir, allow_config_change=FLAGS.allow_config_change)
        return
    # TensorFlow takes seconds to import: nobody should wait that long to hear of a typo.
    with lasting_imports():
        from official_lite import pipeline, telemetry
        from official_lite.run import continuous_finetune_lib

    if mode == "continuous_train_and_eval":
        continuous_finetune_lib.run_continuous_finetune(mode, params, model_dir)
        return
    _, logs = pipeline.RunPipeline(
        params,
        mode,
        model_dir,
        enable_async_checkpointing=FLAGS.enable_async_checkpointing,
        allow_config_change=FLAGS.allow_config_change,
    ).run()
    if mode == "eval" and logs:
        print(telemetry.to_json(telemetry.numbers(logs)))


if __name__ == "__main__":
    experiment_flags.define_flags()
    # Drivers of the Model Garden define this one themselves.
    flags.DEFINE_bool(
        "enable_async_checkpointing", True, "Train on while a checkpoint is being written."
    )
    flags.adopt_module_key_flags(experiment_flags)
    flags.mark_flags_as_required(["experiment", "mode", "model_dir"])
    app.run(main)
