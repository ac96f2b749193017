"""The parser that builds the config of an experiment from a command line, without TensorFlow.

The config is built in layers, each of which overrides the previous one: the registered experiment,
each `--config_file`, gin's `params` bindings, `--tpu` and `--tf_data_service`, `--params_override`,
and each `--set`. After the last layer, `{workspace}` and `~` are expanded, and epochs are converted
to steps if this does not require the data.
"""

import dataclasses
import hashlib
import os
import pprint
import re
from collections.abc import Iterator
from typing import Any

import gin
from absl import logging

from official_lite.common import error_report, errors, files, plugins, terminal
from official_lite.config import epochs, gin_config, phase_configs
from official_lite.core import config_definitions, exp_factory
from official_lite.modeling import hyperparams
from official_lite.modeling.hyperparams import params_dict, yaml_io

_ONE_STEP: dict[str, Any] = {
    "trainer.train_steps": 1,
    "trainer.steps_per_loop": 1,
    "trainer.validation_steps": 1,
}

# A number of epochs so small that it always rounds up to one step.
_LESS_THAN_A_STEP = 1e-12

_NUM_STEPS = 20
_FEW_STEPS: dict[str, Any] = {
    "trainer.train_steps": _NUM_STEPS,
    "trainer.validation_interval": 10,
    "trainer.validation_steps": 2,
    "trainer.checkpoint_interval": _NUM_STEPS,
    "trainer.log_interval": 1,
    # Clear the mutually exclusive fields in epochs, because a phase may set them.
    "trainer.train_epochs": None,
    "trainer.validate_every_epochs": None,
    "trainer.checkpoint_every_epochs": None,
}


@dataclasses.dataclass(kw_only=True)
class ParseConfigOptions:
    """The flags that the parser reads, for programs without a command line."""

    experiment: str
    config_file: list[str] = dataclasses.field(default_factory=list)
    tpu: str = ""
    tf_data_service: str = ""
    params_override: str = ""
    set: list[str] = dataclasses.field(default_factory=list)
    safe_config: bool = False
    apply_gin: bool = True

    def __contains__(self, name: str) -> bool:
        return name in {field.name for field in dataclasses.fields(self)}


class ExperimentParser:
    """A parser that builds the config of an experiment from flags, layer by layer.

    `parse` applies all layers. The other methods are the single layers, for scripts that need other
    combinations.
    """

    def __init__(self, flags_obj: Any) -> None:
        self._flags_obj = flags_obj
        self._default_workspace = ""

    def parse(self) -> Any:
        plugins.restrict(None)
        params = self.base_experiment()
        if _flag(self._flags_obj, "safe_config"):
            # The user of the command line chooses where predictions are written.
            own = dict(map(_split, _flag(self._flags_obj, "set") or []))
            output_dir = files.expand_home(own.get("prediction.output_dir", ""))
            trusted = [*given_by_code(params), self._flags_obj.tpu, output_dir]
            plugins.restrict(plugins.Restriction("--safe_config was given.", trusted))
        params = self.parse_config_file(params)
        if gin.config_str() and _flag(self._flags_obj, "apply_gin") is not False:
            with epochs.log_replaced(params, "gin"):
                params = gin_config.apply_bindings(params)
        params = self.parse_runtime(params)
        params = self.parse_data_service(params)
        params = self.parse_params_override(params)
        params = self.parse_set(params)
        params = expand_home(expand(params, self._default_workspace))
        # Look for code in the strings only after all placeholders are replaced.
        for text in hyperparams.texts(params):
            plugins.refuse_code(text)
        refuse_foreign_code(params.runtime)
        return params

    def base_experiment(self) -> Any:
        """Return the config of the experiment registered under `--experiment`."""
        if self._flags_obj.experiment is None:
            raise errors.ConfigValueError(
                "The flag --experiment must be specified, such as --experiment=vision/digits_cnn."
            )
        return exp_factory.get_exp_config(self._flags_obj.experiment)

    def parse_config_file(self, params: Any) -> Any:
        """Apply each `--config_file`, in order."""
        for config_file in filter(None, self._flags_obj.config_file or []):
            self._override_by_file(params, config_file)
        return params

    def parse_runtime(self, params: Any) -> Any:
        """Apply `--tpu`, if it was given; otherwise a value from a config file is kept."""
        if self._flags_obj.tpu:
            params.override({"runtime": {"tpu": self._flags_obj.tpu}})
        return params

    def parse_data_service(self, params: Any) -> Any:
        """Apply `--tf_data_service`, through which the task then reads all its data."""
        address = _flag(self._flags_obj, "tf_data_service")
        if address:
            if not isinstance(params.task, config_definitions.TaskConfig):
                raise errors.ConfigValueError(
                    "--tf_data_service supports only experiments with one task. Set "
                    "`tf_data_service_address` in the data config of each task instead."
                )
            service = {"enable_tf_data_service": True, "tf_data_service_address": address}
            blocks = ("train_data", "validation_data", "test_data")
            present = [name for name in blocks if getattr(params.task, name) is not None]
            params.override({"task": dict.fromkeys(present, service)})
        return params

    def parse_params_override(self, params: Any) -> Any:
        """Apply `--params_override`."""
        override = self._flags_obj.params_override
        if override and _is_file(override):
            self._override_by_file(params, override)
        elif override:
            with epochs.log_replaced(params, "--params_override"):
                hyperparams.override_params_dict(params, override, is_strict=True)
        return params

    def parse_set(self, params: Any) -> Any:
        """Apply all `--set path=value` at once; if a path is repeated, the last value applies."""
        values = dict(map(_split, _flag(self._flags_obj, "set") or []))
        epochs.refuse_both(params, values, "--set")
        with epochs.log_replaced(params, "--set"):
            params_dict.set_by_paths(params, values.items())
        return params

    def _override_by_file(self, params: Any, config_file: str) -> None:
        config_file = files.expand_home(config_file)
        values = yaml_io.read_yaml(config_file)
        with epochs.log_replaced(params, config_file, values):
            params.override(values)
        directory = os.path.dirname(config_file)
        if values.get("workspace"):
            params.workspace = place(params.workspace, relative_to=directory)
        if not self._default_workspace and uses_workspace(values):
            self._default_workspace = place(directory or os.curdir)


def parse_configuration(flags_obj: Any, lock_return: bool = True, print_return: bool = True) -> Any:
    """Return the resolved, validated and, by default, locked config of an experiment.

    Raises:
        errors.ConfigError: If the config is invalid.
    """
    params = ExperimentParser(flags_obj).parse()
    if _flag(flags_obj, "fast_dev_run"):
        phase_configs.override_all(params, _few_steps)
    if _flag(flags_obj, "dry_run"):
        phase_configs.override_all(params, _one_step)
    _refuse_masked_passwords(params)
    params.validate()
    if hyperparams.get_by_path(params, "phases"):
        # Do not convert epochs to steps here, because a phase may change the length of an epoch.
        # They are converted when the phase begins.
        phase_configs.check(params)
    else:
        params = epochs.resolve(read_model_files(params))
    config_definitions.warn_about_dead_fields(params)
    if lock_return:
        params.lock()
    else:
        params = params.replace()
    if print_return:
        logging.info(
            "Final experiment parameters:\n%s",
            yaml_io.mask_passwords(pprint.pformat(params.as_dict())),
            extra=terminal.DETAIL,
        )
    return params


def _is_file(override: str) -> bool:
    # A field may be set to a URL, so only a text that begins with a URL is a remote file.
    is_remote = re.match(r"\w+://", override) is not None
    return is_remote or os.path.isfile(files.expand_home(override))


def _split(assignment: str) -> tuple[str, str]:
    path, separator, value = assignment.partition("=")
    if not separator:
        raise errors.ConfigValueError(
            f"--set={assignment} has no `=`. Expected --set=path=value, such as "
            "--set=trainer.train_steps=100."
        )
    return path.strip(), value


def _refuse_masked_passwords(params: hyperparams.Config) -> None:
    masked = f":{yaml_io.MASK}@"
    # `texts` also covers the unselected alternatives of a `OneOfConfig`, in which masked passwords
    # are allowed, because the run does not use them. `flatten` omits these alternatives.
    is_masked = any(masked in text for text in hyperparams.texts(params))
    for path, value in hyperparams.flatten(params).items() if is_masked else ():
        if masked in str(value):
            raise errors.ConfigValueError(
                f"`{path}` is {value!r}, whose password is masked, because the config comes from "
                f"the files of a run. Pass the URL with its password: --set={path}=…"
            )


def serialize_config(params: hyperparams.ParamsDict, model_dir: str) -> None:
    """Write `params.yaml`, from which the run can be repeated, to the model directory.

    The passwords of URLs are masked; a config with a masked password is refused.
    """
    if model_dir is None:
        raise errors.ConfigValueError("`model_dir` must be specified, but got None.")
    files.makedirs(model_dir)
    files.write_text(os.path.join(model_dir, "params.yaml"), masked_yaml(params))


def masked_yaml(params: hyperparams.ParamsDict) -> str:
    """Return the text of `params.yaml`: the config as YAML, with the passwords of URLs masked."""
    return yaml_io.mask_passwords(to_yaml(params))


def to_yaml(params: hyperparams.ParamsDict) -> str:
    """Return the config as YAML text."""
    return yaml_io.to_yaml(params.as_dict())


def refuse_foreign_code(runtime: Any) -> None:
    """Reject fields through which a config that is not trusted would make this process run code.

    This is called when a config is parsed, and again for the config of each phase and trial.

    Args:
        runtime: The block `runtime` of a config.

    Raises:
        errors.ConfigValueError: If a restriction is set and a field names machines or programs.
    """
    machines = "names machines that could run code here"
    set_elsewhere = "Name the machines in --tpu or TF_CONFIG instead."
    programs = "names a directory of programs that this process would run"
    for name, problem, remedy in (
        ("tpu", machines, set_elsewhere),
        ("worker_hosts", machines, set_elsewhere),
        ("xla_cache_dir", programs, "Set the environment variable TF_XLA_FLAGS instead."),
    ):
        if value := hyperparams.get_by_path(runtime, name, ""):
            plugins.refuse(value, f"`runtime.{name}` ({value!r}) {problem}", remedy)


def given_by_code(params: Any) -> list[Any]:
    """Return the texts and entries of a registered config, which `--safe_config` always allows."""
    # Expand the strings with the workspace of the registered config itself, because a workspace
    # from a later override is not trusted.
    expanded = expand(params) if hyperparams.get_by_path(params, "workspace", "") else params
    expanded = expand_home(expanded)
    return [*hyperparams.texts(expanded), *_entries(expanded.as_dict())]


def import_modules(names: list[str] | None) -> None:
    """Import modules or files, to register their experiments, tasks and trainers.

    Raises:
        errors.UnknownNameError: If a module does not exist. Errors inside a module are not caught.
    """
    for name in names or []:
        try:
            plugins.load_module(name)
        except errors.ConfigError as error:
            error_report.name_the_line(error)
            raise


def _one_step(params: Any) -> dict[str, Any]:
    """Return overrides that limit training to one step.

    If the config sets `train_epochs`, the overrides set it as well, so that the length of an epoch
    is still checked.
    """
    one_step = _ONE_STEP | _no_eval_steps(params)
    if hyperparams.get_by_path(params, "trainer.train_epochs") is not None:
        del one_step["trainer.train_steps"]
        one_step["trainer.train_epochs"] = _LESS_THAN_A_STEP
    return one_step


def _few_steps(params: Any) -> dict[str, Any]:
    """Return overrides that limit training to a few steps.

    If the length of an epoch would have to be read from the data, all steps become one epoch. If no
    field is in epochs, `steps_per_epoch` is kept, because a stage, a callback or a report may need
    it.
    """
    few_steps = _FEW_STEPS | _no_eval_steps(params)
    given = hyperparams.get_by_path(params, "trainer.steps_per_epoch")
    if given is not None:
        in_epochs = [path for path, value in _FEW_STEPS.items() if value is None]
        has_epochs = any(hyperparams.get_by_path(params, path) is not None for path in in_epochs)
        num_examples = hyperparams.get_by_path(params, "task.train_data.num_examples")
        is_unknown = has_epochs and not given and num_examples in (None, 0, -1)
        few_steps["trainer.steps_per_epoch"] = _NUM_STEPS if is_unknown else given
    return few_steps


def _no_eval_steps(params: Any) -> dict[str, None]:
    """Return overrides after which each of several tasks uses `trainer.validation_steps`."""
    return {
        f"{path}[{index}].eval_steps": None
        for path in ("task.task_routines", "eval_tasks")
        for index, _ in enumerate(hyperparams.get_by_path(params, path, ()))
    }


def _entries(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all dictionaries that have the key `name`, at any depth."""
    if isinstance(value, dict) and "name" in value:
        yield value
    if isinstance(value, dict | list | tuple):
        for element in value.values() if isinstance(value, dict) else value:
            yield from _entries(element)


def _flag(flags_obj: Any, name: str) -> Any:
    """Return the value of a flag; None if the script does not define the flag."""
    return getattr(flags_obj, name) if name in flags_obj else None


PLACEHOLDER = "{workspace}"


def uses_workspace(values: Any) -> bool:
    """Return whether a text in a config, or in a dict from a config file, has the placeholder."""
    return any(PLACEHOLDER in text for text in hyperparams.texts(values))


def expand(params: Any, default: str = "") -> Any:
    """Replace the placeholder in a config with the absolute path of the workspace.

    The field `workspace` is set to the same path.

    Args:
        params: The config. A config without the field `workspace` may use the placeholder, too.
        default: The workspace if the config does not set one.

    Returns:
        An unlocked copy, or `params` itself if it neither uses nor sets a workspace.

    Raises:
        errors.ConfigValueError: If the placeholder is used without a workspace.
    """
    given = hyperparams.get_by_path(params, "workspace", "")
    is_used = uses_workspace(params)
    if not is_used and not given:
        return params
    if PLACEHOLDER in given:
        raise errors.ConfigValueError(
            f"`workspace` is {given!r}; expected a directory without {PLACEHOLDER}."
        )
    directory = place(given or default)
    if not directory:
        raise errors.ConfigValueError(
            f"The config uses {PLACEHOLDER}, but `workspace` is not set. Set it to a "
            "directory (--set=workspace=path/to/directory), or move the fields with "
            f"{PLACEHOLDER} to a --config_file. The workspace is then the directory of this file."
        )
    expanded = hyperparams.map_texts(params, lambda text: text.replace(PLACEHOLDER, directory))
    if hasattr(expanded, "workspace"):
        expanded.workspace = directory
    return expanded


def expand_home(params: Any) -> Any:
    """Return a config in which `~` is expanded in all texts that begin with it.

    Returns:
        An unlocked copy, or `params` itself if no text begins with `~`.
    """
    if not any(text.startswith("~") for text in hyperparams.texts(params)):
        return params
    return hyperparams.map_texts(params, files.expand_home)


def place(directory: str, relative_to: str = "") -> str:
    """Return the absolute path of a directory; an empty path stays empty."""
    if not directory or files.is_remote(directory):
        return directory
    return os.path.abspath(os.path.join(relative_to, os.path.expanduser(directory)))


def read_model_files(params: Any) -> Any:
    """Replace the names of small files on which the model depends with the contents of the files.

    A file such as the architecture that a search has found may change after the run has begun,
    which would change the model. For a large file, such as a vocabulary, a run records only the
    checksum, which is compared when the run is resumed or evaluated. Files that do not exist yet
    are left to the task, because a stage of the run may create them.

    Args:
        params: An experiment's config, locked or not.

    Returns:
        A locked copy, or `params` itself if nothing changes.

    Raises:
        errors.ConfigError: If a file is damaged.
    """
    found = [_contents(task) for _, task in _tasks(params)]
    if not any(found):
        return params
    changed = params.replace()
    for (_, task), contents in zip(_tasks(changed), found, strict=True):
        task.override(contents)
    changed.lock()
    return changed


def model_file_paths(params: Any) -> dict[str, str]:
    """Return the file in each field of `TaskConfig.MODEL_FILES`, by the field's path."""
    return {
        f"{path}.{name}": str(file)
        for path, task in _tasks(params)
        for name in getattr(type(task), "MODEL_FILES", ())
        if (file := getattr(task, name))
    }


def model_file_checksums(params: Any) -> dict[str, str]:
    """Return the checksum of each file in a field of `TaskConfig.MODEL_FILES`, by the field's path.

    Missing files and files on remote file systems are left out.
    """
    found = {}
    for path, file in model_file_paths(params).items():
        if not files.is_remote(file) and os.path.isfile(file):
            with files.open_file(file, "rb") as opened:
                found[path] = hashlib.sha256(opened.read()).hexdigest()
    return found


def _tasks(params: Any) -> Iterator[tuple[str, Any]]:
    """Yield the path and config of the top-level task and of each task in a multi-task config."""
    yield "task", params.task
    # Use the names of the tasks, because a run may evaluate only some of them.
    for routine in hyperparams.get_by_path(params, "task.task_routines", ()):
        yield f"task.task_routines[{routine.resolved_name}].task_config", routine.task_config


def _contents(task: Any) -> dict[str, Any]:
    # A task config that is not a `TaskConfig` may lack `read_model_files`.
    read = getattr(type(task), "read_model_files", None)
    return read(task) if read else {}
