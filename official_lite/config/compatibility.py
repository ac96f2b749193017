"""The check that a run may resume from the checkpoints of an earlier run, given both configs.

A field has changed if its value differs both from the value that was passed to the earlier run and
from the value that this run resolved it to (epochs are resolved to steps, `auto` to an execution
mode). A schedule has changed if its steps, computed for the training length of the earlier run,
differ. This module does not need TensorFlow.
"""

import dataclasses
import fnmatch
import itertools
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from official_lite.checkpoint import chain
from official_lite.common import errors, files, nested_dict, suggestions
from official_lite.config import epochs, parsing
from official_lite.modeling import hyperparams
from official_lite.modeling.hyperparams import yaml_io

# Fields that may change between two starts of a run: its length, intervals, outputs and speed. All
# other fields affect the training itself. A pattern matches a block or field and all fields below
# it; `*` does not match dots.
HARMLESS = (
    "eval_tasks",
    "phases",
    "pipeline",
    "prediction",
    "runtime",
    "search",
    "task.allow_image_summary",
    "task.init_checkpoint*",
    "task.predict_data",
    "task.test_data",
    "task.validation_data",
    "task.*_data.prefetch_buffer_size",
    "task.*_data.ram_budget",
    "task.*_data.*tf_data_service*",
    "task.*_data.autotune_algorithm",
    "task.*_data.trainer_id",
    "task.task_routines*.eval_steps",
    # Do not use patterns below, because they could match the fields of a user's `TrainerConfig`.
    "trainer.allow_tpu_summary",
    "trainer.best_checkpoint_eval_metric",
    "trainer.best_checkpoint_export_subdir",
    "trainer.best_checkpoint_metric_comp",
    "trainer.checkpoint_every_epochs",
    "trainer.checkpoint_interval",
    "trainer.continuous_eval_timeout",
    "trainer.eval_tf_function",
    "trainer.eval_tf_while_loop",
    "trainer.hooks",
    "trainer.log_interval",
    "trainer.loss_upper_bound",
    "trainer.max_to_keep",
    "trainer.preemption_on_demand_checkpoint",
    "trainer.recovery_begin_steps",
    "trainer.recovery_max_trials",
    "trainer.remat",
    "trainer.steps_per_epoch",
    "trainer.steps_per_loop",
    "trainer.summary_interval",
    "trainer.train_epochs",
    "trainer.train_steps",
    "trainer.train_tf_function",
    "trainer.train_tf_while_loop",
    "trainer.validate_every_epochs",
    "trainer.validation_interval",
    "trainer.validation_steps",
    "trainer.validation_summary_subdir",
    "trainer.writers",
    "workspace",
)

# Exceptions to the fields that may change between two starts: these fields do affect training.
_HARMFUL = (
    "runtime.seed",
    "runtime.mixed_precision_dtype",
    "runtime.loss_scale",
)

# The path of the config block with the learning rate schedules. Their steps may depend on the
# training length.
_SCHEDULES = "trainer.optimizer_config."

# The path of the architecture field. Its subfields hold the chosen option of each label.
_ARCHITECTURE = "task.arch"

# The path of the list of tasks in a multi-task config.
_ROUTINES = "task.task_routines"

# Matches the path of a field of one task in a multi-task config. Such paths contain task names
# instead of indices, because a run may evaluate only some of the tasks.
_OF_ROUTINE = re.compile(r"task\.task_routines\[(?P<name>.*)\]\.(?P<field>.*)")

# The last path component of a `Change` that reports new contents of a file named in the config.
_CONTENT = "(sha256 of the file)"

_CHECKPOINT = re.compile(r"ckpt-\d+\.index")

MISSING = "(none)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """A field whose value differs from its value in the earlier run."""

    path: str
    old: Any
    new: Any

    @property
    def is_harmless(self) -> bool:
        """Whether a run may resume despite the change."""
        return is_harmless(self.path)

    def __str__(self) -> str:
        return f"{self.path}: {self.old} -> {self.new}"


def is_harmless(path: str) -> bool:
    """Return whether the field at a path may change between two starts of a run."""
    path = without_routine(path)
    return _matches(path, HARMLESS) and not _matches(path, _HARMFUL)


def check(params: hyperparams.Config, model_dir: str, *, is_allowed: bool = False) -> list[Change]:
    """Compare a config with the config of the checkpoints in a directory, and log the changes.

    Without a checkpoint, nothing is compared. A warning is logged if the checkpoints of the earlier
    run have been lost.

    Args:
        params: The config of this run.
        model_dir: The model directory.
        is_allowed: Whether any change is allowed.

    Returns:
        The fields that have changed.

    Raises:
        errors.ConfigValueError: If a field that affects the training has changed and `is_allowed`
            is false.
    """
    if not any(map(_CHECKPOINT.fullmatch, files.list_names(model_dir))):
        _warn_of_lost_checkpoints(model_dir)
        return []
    changes = find_changes(params, model_dir)
    if (names := other_experiment(read_run(model_dir))) and not is_allowed:
        before, now = names
        raise errors.ConfigValueError(
            f"The checkpoints in {model_dir} belong to the experiment `{before}`, not to `{now}`; "
            f"{len(changes)} fields of the config differ. Use another --model_dir for `{now}`, or "
            f"pass --experiment={before} to resume that run."
        )
    for change in changes:
        logging.info("Config change since the last start in %s: %s", model_dir, change)
    harmful = [change for change in changes if not change.is_harmless]
    if not harmful:
        return changes
    listed = "\n".join(f"  {change}" for change in harmful)
    if is_allowed:
        logging.warning(
            "This run resumes with a config that differs from the one it started with:\n%s", listed
        )
        return changes
    raise errors.ConfigValueError(
        f"The checkpoints in {model_dir} were saved with a different config:\n{listed}\nPass "
        "--allow_config_change (in Python: `allow_config_change=True`) to resume anyway. To start "
        "a new run from their weights, use another `model_dir` and set `task.init_checkpoint`."
    )


def _warn_of_lost_checkpoints(model_dir: str) -> None:
    # Do not warn about checkpoints with other names, which another program has saved.
    if any(name.endswith(".index") for name in files.list_names(model_dir)):
        return
    record = read_run(model_dir)
    has_ended = record.get("global_step") and record.get("status") in ("done", "preempted")
    # Do not warn about a run that keeps no checkpoints. Its chain of checkpoints is empty.
    if has_ended and chain.listed(chain.read(model_dir)):
        logging.warning(
            "The run in %s has reached step %s, but its checkpoints are gone. Training restarts "
            "from step 0 and removes the records of later steps. To keep these records, use "
            "another `model_dir`.",
            model_dir,
            record["global_step"],
        )


def other_experiment(record: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the experiments of a recorded run and of this command, if their names differ.

    Args:
        record: The content of `run.json`.
    """
    before, now = _experiment_of(record.get("argv")), _experiment_of(sys.argv)
    return (before, now) if before and now and before != now else None


def check_model(params: hyperparams.Config, model_dir: str, *, is_allowed: bool = False) -> None:
    """Compare the config of a run that does not train with the training config, and log changes.

    Args:
        params: The config of the run that does not train.
        model_dir: The model directory of the training run.
        is_allowed: Whether any change is allowed.

    Raises:
        errors.ConfigValueError: If the architecture or a file of the model has changed and
            `is_allowed` is false. Loading the weights might not fail despite such a change.
    """
    harmful = [change for change in find_changes(params, model_dir) if not change.is_harmless]
    if not harmful:
        return
    message = (
        f"The config of this command differs from the one that {model_dir} was trained with:\n"
        + "\n".join(f"  {change}" for change in harmful)
        + "\nTo use the training config, apply its file: "
        + suggestions.config_file(os.path.join(model_dir, "params.yaml"))
    )
    of_model = [
        change
        for change in harmful
        if without_routine(change.path).startswith(_ARCHITECTURE) or change.path.endswith(_CONTENT)
    ]
    if of_model and not is_allowed:
        raise errors.ConfigValueError(message)
    logging.warning("%s", message)


def find_changes(params: hyperparams.Config, model_dir: str) -> list[Change]:
    """Return the fields that have changed since the last run in a directory, sorted by path."""
    became = _read_params(model_dir)
    given = _read_given(model_dir) or became
    if not became or not given:
        return []
    own = epochs.given(params)
    new = flatten(own.as_dict())
    if isinstance(train_steps := became.get("trainer.train_steps"), int):
        in_steps = flatten(epochs.schedule_steps(own, train_steps))
        ratios = [path for path, value in in_steps.items() if value is None]
        # Compare ratios instead of steps if the last start recorded ratios, because it ended before
        # the length of an epoch was known.
        if all(became.get(path) is None for path in ratios):
            new |= in_steps
    new, given, became = runs = [by_task(values) for values in (new, given, became)]
    changes = []
    for path in sorted({*new, *given}):
        value = new.get(path, MISSING)
        if path not in given and path not in became and is_default(params, path):
            # The config of the earlier run was written by a version that did not have this field.
            continue
        within = without_routine(path)
        architecture = path.removesuffix(within.removeprefix(_ARCHITECTURE))
        if within.startswith(_ARCHITECTURE) and became.get(architecture):
            # The config of the earlier run was written by a version that recorded only the name of
            # the architecture file, not its contents.
            continue
        routine = _OF_ROUTINE.fullmatch(path)
        if routine and not all(routine["name"] in (each.get(_ROUTINES) or ()) for each in runs):
            # A task was added or removed, which the change of the list of names reports.
            continue
        # A schedule's steps may have been configured as ratios, so compare only the resolved steps.
        olds = [became] if path.startswith(_SCHEDULES) else [given, became]
        if value not in [old.get(path, MISSING) for old in olds]:
            changes.append(Change(path=path, old=became.get(path, MISSING), new=value))
    return [*changes, *_changed_files(params, model_dir)]


def by_task(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a flat config in which the list of several tasks contains only their names.

    The fields of each task are added by path, as in `task.task_routines[name].task_weight`.

    Args:
        values: A flat config, or a result of this function, which is returned unchanged.
    """
    if any(isinstance(routine, str) for routine in values.get(_ROUTINES) or ()):
        return dict(values)
    names = _names_of_tasks(values)
    fields: dict[str, Any] = {}
    for name, routine in zip(names, values.get(_ROUTINES) or (), strict=True):
        of_task = flatten(routine).items()
        fields |= {f"{_ROUTINES}[{name}].{path}": value for path, value in of_task}
    return {**values, _ROUTINES: names, **fields} if names else dict(values)


def _names_of_tasks(values: Mapping[str, Any]) -> list[Any]:
    """Return the task names in a flat multi-task config, in order."""
    return [
        routine.get("task_name") or (routine.get("task_config") or {}).get("name")
        for routine in values.get(_ROUTINES) or ()
    ]


def without_routine(path: str) -> str:
    """Return the path that a field of one of several tasks would have if it were the only task.

    A field of the routine itself keeps its place, but without the task's name, which may have dots.
    """
    routine = _OF_ROUTINE.fullmatch(path)
    if routine is None:
        return path
    field = routine["field"]
    is_of_task = field.startswith("task_config.")
    return f"task.{field.removeprefix('task_config.')}" if is_of_task else f"{_ROUTINES}.{field}"


def _changed_files(params: hyperparams.Config, model_dir: str) -> Iterator[Change]:
    """Yield a change for each model file that has changed since the last run."""
    known = _recorded_files(read_run(model_dir))
    for path, new in parsing.model_file_checksums(params).items():
        if (old := known.get(path, new)) != new:
            yield Change(path=f"{path}.{_CONTENT}", old=old, new=new)


def model_files(params: hyperparams.Config, record: Mapping[str, Any]) -> dict[str, str]:
    """Return the checksums of the model files, by the paths of the fields that name them.

    A file that is missing now, but that the config still names, keeps its recorded checksum.

    Args:
        params: The config of this run.
        record: The content of `run.json` of the earlier run.
    """
    given = record.get("params")
    old = by_task(given if isinstance(given, dict) else {})
    new = by_task(flatten(epochs.given(params).as_dict()))
    kept = {
        path: checksum
        for path, checksum in _recorded_files(record).items()
        if path in new and new[path] == old.get(path)
    }
    return {**kept, **parsing.model_file_checksums(params)}


def _recorded_files(record: Mapping[str, Any]) -> dict[str, str]:
    files_of_run, given = record.get("model_files"), record.get("params")
    names = _names_of_tasks(given) if isinstance(given, dict) else []
    found = {}
    for path, checksum in (files_of_run if isinstance(files_of_run, dict) else {}).items():
        routine = _OF_ROUTINE.fullmatch(path)
        name = routine["name"] if routine else ""
        if routine and name not in names and name.isdigit() and int(name) < len(names):
            # Earlier versions recorded the position of a task instead of its name.
            path = f"{_ROUTINES}[{names[int(name)]}].{routine['field']}"
        found[path] = checksum
    return found


def is_default(params: hyperparams.Config, path: str) -> bool:
    """Return whether the field of a config at a path exists and has its default value."""
    owner: Any = params
    if routine := _OF_ROUTINE.fullmatch(path):
        by_name = {each.resolved_name: each for each in params.task.task_routines}
        owner, path = by_name.get(routine["name"]), routine["field"]
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent, None)
    if not dataclasses.is_dataclass(owner):
        return False
    for field in dataclasses.fields(owner):
        if field.name == name:
            make = field.default_factory
            default = field.default if make is dataclasses.MISSING else make()
            return bool(default == getattr(owner, name))
    return False


def flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaves of a nested config by path, as JSON values: `{"trainer.name": null}`.

    The passwords of URLs are masked.
    """
    plain = json.loads(yaml_io.mask_passwords(json.dumps(values, default=str)))
    return nested_dict.flatten_nested_dict(plain, ".", lambda v: not isinstance(v, dict) or not v)


def recorded_steps(params: hyperparams.Config, model_dir: str) -> dict[str, int]:
    """Return the steps that the run in a model directory has derived from its epochs.

    Args:
        params: The config of a run whose own steps are unknown.
        model_dir: The model directory of the training run.

    Returns:
        The trainer's fields with integers, by name; only `steps_per_epoch` if `params` trains for
        other epochs; empty if there is no training run.
    """
    became, given = _read_params(model_dir), _read_given(model_dir)
    path = "trainer.train_epochs"
    wanted = hyperparams.get_by_path(epochs.given(params), path)
    if became.get(path) is not None:
        return {}
    recorded = {
        path.removeprefix("trainer."): value
        for path, value in became.items()
        if path.startswith("trainer.") and isinstance(value, int)
    }
    if given.get(path) != wanted:
        return {name: recorded[name] for name in recorded.keys() & {"steps_per_epoch"}}
    return recorded


def _read_params(model_dir: str) -> dict[str, Any]:
    path = os.path.join(model_dir, "params.yaml")
    try:
        return flatten(yaml_io.read_yaml(path)) if files.exists(path) else {}
    except (OSError, ValueError) as error:
        logging.warning("The config of the training run, %s, can't be read: %s", path, error)
        return {}


def _read_given(model_dir: str) -> dict[str, Any]:
    given = read_run(model_dir).get("params")
    return given if isinstance(given, dict) else {}


def read_run(model_dir: str) -> dict[str, Any]:
    """Return the content of `run.json` in a model directory; empty if it can't be read."""
    try:
        return dict(files.read_json(os.path.join(model_dir, "run.json")))
    except (OSError, TypeError, ValueError):
        return {}


def _experiment_of(argv: Any) -> str:
    """Return the value of the last `--experiment` flag in a command, or an empty string."""
    command = list(map(str, argv)) if isinstance(argv, list) else []
    found = ""
    for argument, following in itertools.pairwise([*command, ""]):
        name, separator, value = argument.lstrip("-").partition("=")
        if argument.startswith("-") and name == "experiment":
            found = value if separator else following
    return found


def _matches(path: str, patterns: Sequence[str]) -> bool:
    """Return whether a pattern matches a path or the path of a block that contains it."""
    names = path.split(".")
    return any(
        len(parts) <= len(names)
        and all(fnmatch.fnmatchcase(*pair) for pair in zip(names, parts, strict=False))
        for parts in (pattern.split(".") for pattern in patterns)
    )
