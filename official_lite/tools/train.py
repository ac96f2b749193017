"""Train, evaluate or test a registered experiment, or predict with it.

    python train.py --experiment=vision/digits_cnn --mode=train_and_eval --model_dir=/tmp/digits
    official-lite train --import=mine.py --experiment=mine --mode=train --model_dir=/tmp/mine

`train.py` and `python -m official_lite.tools train` are the same command. An experiment is found if
it is registered by `registry_imports.py` in the current directory, an installed package, or a
module that `--import` names.
"""

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags, logging

from official_lite.common import app, error_report, errors, files, terminal, tf_config
from official_lite.common import flags as experiment_flags
from official_lite.config import gin_config, parsing, phase_configs
from official_lite.core import config_definitions
from official_lite.execution import execution_record
from official_lite.run import provenance, run_record, xla_cache
from official_lite.tools import sources, verify

FLAGS = flags.FLAGS


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the flags, run the experiment and exit the process.

    Args:
        argv: The name of the program and its flags. Defaults to `sys.argv`.
    """
    _define_flags()
    # Copy the docstring and the key flags to the script that was started, because absl shows those
    # of the script for `--help`.
    sys.modules["__main__"].__doc__ = __doc__
    for module in (experiment_flags.__name__, __name__):
        for flag in FLAGS.get_key_flags_for_module(module):
            FLAGS.register_key_flag_for_module(sys.argv[0], flag)
    flags.mark_flags_as_required(["experiment", "mode", "model_dir"])
    app.run(_main, argv=experiment_flags.expand_home(argv or sys.argv))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags, which absl defines and parses, as arguments that a shell can complete."""
    _define_flags()
    for flag in FLAGS.flags_by_module_dict()[experiment_flags.__name__]:
        if flag.boolean:
            parser.add_argument(f"--{flag.name}", action="store_true", help=flag.help)
        else:
            values = getattr(flag.parser, "enum_values", None)
            parser.add_argument(f"--{flag.name}", choices=values, help=flag.help)


def _define_flags() -> None:
    experiment_flags.define_flags()
    # Model Garden drivers define `enable_async_checkpointing` themselves.
    if "enable_async_checkpointing" not in FLAGS:
        flags.DEFINE_bool(
            "enable_async_checkpointing",
            True,
            "Continue training while a checkpoint is being written.",
        )


def _main(argv: list[str]) -> None:
    _refuse_positional(argv[1:])
    error_report.check_limit()
    sources.load_registrations(FLAGS["import"].value or [])
    gin_config.parse_gin_flags(FLAGS)
    params = parsing.parse_configuration(FLAGS, print_return=not FLAGS.print_config)
    if FLAGS.print_config:
        execution = execution_record.describe_execution(FLAGS.model_dir)
        print(parsing.to_yaml(params) + execution, end="")
        return
    if FLAGS.mode == "test" and not params.phases:
        # Check this before TensorFlow is imported.
        config_definitions.require_test_data(params)
    if FLAGS.dry_run:
        _dry_run(params)
    elif not run_record.is_finished(
        params, FLAGS.mode, FLAGS.model_dir, allow_config_change=FLAGS.allow_config_change
    ):
        run_record.check_model_dir(FLAGS.model_dir)
        _run(params, FLAGS.mode, FLAGS.model_dir)


def _dry_run(params: config_definitions.ExperimentConfig) -> None:
    """Estimate the memory of a training step, then run it and an evaluation step.

    With `--mode=train`, there is no evaluation step, because the task may lack validation data.
    """
    if FLAGS.mode == "test" and not params.phases:
        params = config_definitions.for_test(params).replace(trainer={"validation_steps": 1})
    kept = _leave_out_predictions(params)
    if params.phases and not kept:
        logging.info("The dry run ran nothing, because no phase is left.")
        return
    params = params.replace(phases=kept)
    params.lock()
    with tempfile.TemporaryDirectory() as model_dir:
        _refuse_start_from_earlier_phase(params, model_dir)
        _run(params, "train" if FLAGS.mode == "train" else "train_and_eval", model_dir)
    logging.info("The dry run succeeded. It left no files.")


def _leave_out_predictions(
    params: config_definitions.ExperimentConfig,
) -> list[phase_configs.PhaseConfig]:
    """Return the phases except those that predict, and except those that read predictions.

    Predictions are left out because a predicting phase writes them for all rows, possibly to a
    directory outside the model directory.
    """
    kept: list[phase_configs.PhaseConfig] = []
    missing: list[str] = []
    for index, phase in enumerate(params.phases):
        model_dir = phase_configs.directory(params, index, FLAGS.model_dir)
        resolved = parsing.expand_home(phase_configs.resolve(params, index, FLAGS.model_dir))
        read = [*provenance.find_input_patterns(resolved), resolved.task.init_checkpoint]
        needed = [path for path in read if any(phase_configs.lies_in(path, d) for d in missing)]
        if phase.mode == "predict":
            missing.append(run_record.predictions_dir(resolved, model_dir))
            logging.info("The dry run leaves out the phase `%s`, which predicts.", phase.name)
        elif needed:
            missing.append(model_dir)
            logging.info(
                "The dry run leaves out the phase `%s`, which needs the files of a phase that is "
                "left out: %s",
                phase.name,
                ", ".join(needed),
            )
        else:
            kept.append(phase)
    return kept


def _refuse_start_from_earlier_phase(
    params: config_definitions.ExperimentConfig, model_dir: str
) -> None:
    """Raise an error if several workers would start a phase from the directory of another one."""
    runtime = params.runtime
    if runtime.distribution_strategy.lower() != "multi_worker_mirrored":
        return
    found = tf_config.find_cluster(runtime.worker_hosts, runtime.task_index)
    for index, phase in enumerate(params.phases):
        source = phase_configs.resolve(params, index, model_dir).task.init_checkpoint
        if found and found.num_workers > 1 and phase_configs.lies_in(source, model_dir):
            raise errors.ConfigValueError(
                f"`init_from` of the phase {phase.name!r} is {phase.init_from!r}, but in a "
                "--dry_run each worker has its own temporary directory, so the workers would not "
                "start from the same checkpoint. Dry run a single process, without the cluster: "
                "--set=runtime.distribution_strategy=mirrored"
            )


def _keep_inside(params: Any) -> Any:
    """Return a config whose writers and hooks write only to the model directory."""
    from official_lite.core import preflight

    def values_for(each: Any) -> dict[str, Any]:
        # Report unknown writers now, because those that are replaced below are not looked up later.
        preflight.find_writers(each)
        trainer = each.trainer.as_dict()
        values: dict[str, Any] = {}
        if trainer.get("writers"):
            values["trainer.writers"] = ["console"]
        if trainer.get("hooks"):
            values["trainer.hooks"] = [_redirect(hook) for hook in trainer["hooks"]]
        return values

    inside = params.replace()
    phase_configs.override_all(inside, values_for)
    inside.lock()
    return inside


def _redirect(hook: Any) -> Any:
    """Return a hook that writes to the model directory instead of an absolute or remote path.

    A callback of Keras that writes files is replaced by an idle one, because its paths are relative
    to the working directory. Your own hooks and callbacks are not changed.
    """
    kept, _ = verify.leave_out_writers([hook])
    if kept or not isinstance(hook, Mapping):
        return kept[0] if kept else hook
    return {name: _relative(value) for name, value in hook.items()}


def _relative(value: Any) -> Any:
    is_path = isinstance(value, str) and (os.path.isabs(value) or files.is_remote(value))
    # Include the whole path, because two hooks can't write to the same directory.
    return "redirected" + re.sub(r"\W+", "_", value) if is_path else value


def _refuse_positional(arguments: Sequence[str]) -> None:
    """Raise an error for positional arguments, which absl accepts but nothing reads."""
    for argument in arguments:
        hint = ""
        if "=" in argument.lstrip("="):
            hint = f" To override the config, pass --set={argument}."
        elif "=" in argument:
            hint = " Write --set=path=value without spaces."
        elif argument.endswith(("]", "}")):
            hint = " Put a value with spaces in quotes: '--set=path=[1, 2]'."
        raise errors.ConfigValueError(
            f"The argument {argument!r} is not a flag; all arguments start with `--`.{hint}"
        )


def _run(params: config_definitions.ExperimentConfig, mode: str, model_dir: str) -> None:
    xla_cache.use_directory(params.runtime.xla_cache_dir)
    if mode == "search":
        from official_lite import search

        search.run_search(params, model_dir, allow_config_change=FLAGS.allow_config_change)
        return
    # Import TensorFlow only now, so that a typo in the config is reported before the slow import.
    logging.info("%s of %s in %s", mode, FLAGS.experiment, model_dir)
    with app.gc_frozen_imports(), terminal.without_startup_messages():
        import tensorflow as tf

        from official_lite import orbit, pipeline, telemetry
        from official_lite.core import continuous_finetune_lib, step_memory

        # List the devices here, because listing them for the first time also prints startup
        # messages.
        tf.config.list_physical_devices()
    if FLAGS.dry_run:
        params = _keep_inside(params)
    if mode == "continuous_train_and_eval":
        continuous_finetune_lib.run_continuous_finetune(
            mode, params, model_dir, allow_config_change=FLAGS.allow_config_change
        )
        return
    estimate = orbit.hooks.LambdaHook(
        before_train=lambda hook: step_memory.log_estimate(hook.trainer)
    )
    _, logs = pipeline.RunPipeline(
        params,
        mode,
        model_dir,
        enable_async_checkpointing=FLAGS.enable_async_checkpointing,
        allow_config_change=FLAGS.allow_config_change,
        hooks=[estimate] if FLAGS.dry_run else [],
    ).run()
    if mode in ("eval", "test", "predict") and logs:
        print(telemetry.to_json(telemetry.numbers(logs)))
