"""Suggestions of known names for an unknown name, including names from Keras and Lightning."""

import difflib
from collections.abc import Iterable

# Maps arguments and flags of Keras, Lightning and common scripts to their counterparts: a path in
# the experiment config, or a flag.
_ELSEWHERE = {
    **dict.fromkeys(("epochs", "max_epochs", "num_epochs", "n_epochs"), "trainer.train_epochs"),
    **dict.fromkeys(("steps", "max_steps", "num_steps", "iterations"), "trainer.train_steps"),
    **{
        name: f"trainer.{name}"
        for name in (
            "best_checkpoint_eval_metric",
            "checkpoint_interval",
            "hooks",
            "log_interval",
            "optimizer_config",
            "steps_per_epoch",
            "steps_per_loop",
            "train_epochs",
            "train_steps",
            "validation_interval",
            "validation_steps",
            "writers",
        )
    },
    **{name: f"task.{name}" for name in ("init_checkpoint", "model")},
    "global_batch_size": "task.train_data.global_batch_size",
    "input_path": "task.train_data.input_path",
    "mixed_precision_dtype": "runtime.mixed_precision_dtype",
    "steps_per_execution": "trainer.steps_per_loop",
    "validation_freq": "trainer.validate_every_epochs",
    "check_val_every_n_epoch": "trainer.validate_every_epochs",
    "val_check_interval": "trainer.validation_interval",
    "eval_steps": "trainer.validation_interval",
    **dict.fromkeys(("limit_val_batches", "validation_batches"), "trainer.validation_steps"),
    **dict.fromkeys(("log_every_n_steps", "logging_steps"), "trainer.log_interval"),
    **dict.fromkeys(("save_steps", "save_freq"), "trainer.checkpoint_interval"),
    **dict.fromkeys(
        ("accumulate_grad_batches", "gradient_accumulation_steps"), "trainer.grad_accum_steps"
    ),
    **dict.fromkeys(("callbacks", "callback", "early_stopping"), "trainer.hooks"),
    **dict.fromkeys(("logger", "loggers"), "trainer.writers"),
    "monitor": "trainer.best_checkpoint_eval_metric",
    **dict.fromkeys(("save_top_k", "save_total_limit"), "trainer.max_to_keep"),
    **dict.fromkeys(
        ("lr", "learning_rate"), "trainer.optimizer_config.learning_rate.constant.learning_rate"
    ),
    **dict.fromkeys(
        ("scheduler", "lr_scheduler", "lr_schedule"), "trainer.optimizer_config.learning_rate"
    ),
    "optimizer": "trainer.optimizer_config.optimizer.type",
    **dict.fromkeys(("warmup", "warmup_steps"), "trainer.optimizer_config.warmup"),
    **dict.fromkeys(
        ("batch_size", "batch", "train_batch_size"), "task.train_data.global_batch_size"
    ),
    **dict.fromkeys(
        ("eval_batch_size", "val_batch_size", "validation_batch_size"),
        "task.validation_data.global_batch_size",
    ),
    "shuffle": "task.train_data.shuffle_buffer_size",
    **dict.fromkeys(("data", "data_dir", "train_data", "dataset"), "task.train_data.input_path"),
    "validation_data": "task.validation_data.input_path",
    "test_data": "task.test_data.input_path",
    **dict.fromkeys(("gpus", "num_gpus", "gpu"), "runtime.num_gpus"),
    **dict.fromkeys(("devices", "accelerator"), "runtime.devices"),
    **dict.fromkeys(("strategy", "distribution_strategy"), "runtime.distribution_strategy"),
    **dict.fromkeys(("precision", "fp16", "bf16", "amp"), "runtime.mixed_precision_dtype"),
    **dict.fromkeys(("seed", "random_seed"), "runtime.seed"),
    "jit_compile": "runtime.execution",
    "run_eagerly": "runtime.execution",
    **dict.fromkeys(("ckpt_path", "checkpoint", "weights", "pretrained"), "task.init_checkpoint"),
    **dict.fromkeys(
        ("output_dir", "log_dir", "logdir", "save_dir", "default_root_dir", "workdir"),
        "--model_dir",
    ),
    **dict.fromkeys(("resume", "resume_from_checkpoint", "resume_from"), "--model_dir"),
    **dict.fromkeys(("config", "cfg", "config_path", "config_name"), "--config_file"),
}


def nearest(name: str, known: Iterable[str], *, count: int = 3) -> list[str]:
    """Return the known names most similar to `name`, nearest first; empty if none is close."""
    names = sorted({str(candidate) for candidate in known})
    matches = difflib.get_close_matches(name, names, n=count, cutoff=0.6)
    if matches:
        return matches
    lowered = {candidate.lower(): candidate for candidate in names}
    return [lowered[m] for m in difflib.get_close_matches(name.lower(), lowered, n=count)]


def did_you_mean(name: str, known: Iterable[str], *, count: int = 3) -> str:
    """Return a sentence for an error message with the nearest names, or else the known names.

    At most 20 known names are listed. The result is empty if no names are known.
    """
    names = sorted({str(candidate) for candidate in known})
    matches = nearest(name, names, count=count)
    if matches:
        return "Did you mean " + " or ".join(f"`{match}`" for match in matches) + "?"
    if not names:
        return ""
    shown = ", ".join(f"`{candidate}`" for candidate in names[:20])
    return f"Known: {shown}{', …' if len(names) > 20 else ''}."


def config_file(path: str) -> str:
    """Return how to apply a config file to an experiment, by a flag and in Python."""
    call = f"hyperparams.override_params_dict(params, {path!r}, is_strict=True)"
    return f"--config_file={path} (in Python: `{call}`)"


def counterpart(name: str) -> str:
    """Return the config path or flag that corresponds to `name` in Keras or Lightning; else ""."""
    return _ELSEWHERE.get(name.replace("-", "_"), "")
