"""From a command line to the config of an experiment. Nothing here needs TensorFlow.

The layers, each of which overrides the one before: the registered experiment, each
`--config_file`, gin's `params` bindings, `--tpu` and `--tf_data_service`, `--params_override`, and
each `--set`. `{workspace}` is expanded behind the last layer, and epochs become steps where that
needs no data.
"""

import dataclasses
import os
import pprint
from collections.abc import Iterator
from typing import Any

from absl import logging

from official_lite.common import error_report, errors, files, plugins
from official_lite.config import epochs, gin_config, mutually_exclusive, phase_configs
from official_lite.core import config_definitions, exp_factory
from official_lite.modeling import hyperparams
from official_lite.modeling.hyperparams import yaml_io

__all__ = [
    "ExperimentParser",
    "ParseConfigOptions",
    "given_by_code",
    "import_modules",
    "parse_configuration",
    "serialize_config",
    "to_yaml",
    "PLACEHOLDER",
    "expand",
    "place",
    "uses_workspace",
]


_ONE_STEP = {
    "trainer.train_steps": 1,
    "trainer.steps_per_loop": 1,
    "trainer.validation_steps": 1,
}

# In epochs; what is begun of a step is one.
_LESS_THAN_A_STEP = 1e-12

_FEW_STEPS = {
    "trainer.train_steps": 20,
    "trainer.validation_interval": 10,
    "trainer.validation_steps": 2,
    "trainer.checkpoint_interval": 20,
    "trainer.log_interval": 1,
}


@dataclasses.dataclass(kw_only=True)
class ParseConfigOptions:
    """Stands in for the flags where there is no command line."""

    experiment: str
    config_file: list[str] = dataclasses.field(default_factory=list)
    tpu: str = ""
    tf_data_service: str = ""
    params_override: str = ""
    set: list[str] = dataclasses.field(default_factory=list)
    safe_config: bool = False

    def __contains__(self, name: str) -> bool:
        return name in {field.name for field in dataclasses.fields(self)}


class ExperimentParser:
    """Builds the config of an experiment from flags, layer by layer.

    `parse()` is all of it; the other methods are the layers, for those who want other ones.
    """

    def __init__(self, flags_obj: Any) -> None:
        self._flags_obj = flags_obj
        self._default_workspace = ""

    def parse(self) -> Any:
        plugins.restrict(None)
        params = self.base_experiment()
        if _flag(self._flags_obj, "safe_config"):
            trusted = given_by_code(params)
            plugins.restrict(plugins.Restriction("--safe_config was given.", trusted))
        params = self.parse_config_file(params)
        with mutually_exclusive.log_replaced(params, "gin"):
            params = gin_config.apply_bindings(params)
        params = self.parse_runtime(params)
        params = self.parse_data_service(params)
        params = self.parse_params_override(params)
        params = self.parse_set(params)
        params = expand(params, self._default_workspace)
        # Only now are these the texts that will be resolved.
        for text in hyperparams.texts(params):
            plugins.refuse_code(text)
        self._refuse_hosts(params.runtime)
        return params

    def _refuse_hosts(self, runtime: Any) -> None:
        """Refuse machines that an untrusted config names: they could run ops in this process."""
        for name in ("tpu", "worker_hosts"):
            value = getattr(runtime, name, "")
            if value and value != _flag(self._flags_obj, name):
                plugins.refuse(
                    value,
                    f"`runtime.{name}` ({value!r}) names machines that could run code here",
                    "Give them by --tpu, or in TF_CONFIG.",
                )

    def base_experiment(self) -> Any:
        """The experiment as it is registered under `--experiment`."""
        if self._flags_obj.experiment is None:
            raise errors.ConfigValueError(
                "The flag --experiment must be specified, such as --experiment=vision/digits_cnn."
            )
        return exp_factory.get_exp_config(self._flags_obj.experiment)

    def parse_config_file(self, params: Any) -> Any:
        """Applies each `--config_file`, in order."""
        for config_file in filter(None, self._flags_obj.config_file or []):
            self._override_by_file(params, config_file)
        return params

    def parse_runtime(self, params: Any) -> Any:
        """Applies `--tpu`, if it was given: a value from a config file stays otherwise."""
        if self._flags_obj.tpu:
            params.override({"runtime": {"tpu": self._flags_obj.tpu}})
        return params

    def parse_data_service(self, params: Any) -> Any:
        """Applies `--tf_data_service`: the task reads all its data through that service."""
        address = _flag(self._flags_obj, "tf_data_service")
        if address:
            if not isinstance(params.task, config_definitions.TaskConfig):
                raise errors.ConfigValueError(
                    "--tf_data_service is for experiments with one task; set "
                    "`tf_data_service_address` in the data of each task instead."
                )
            service = {"enable_tf_data_service": True, "tf_data_service_address": address}
            params.override({"task": {"train_data": service, "validation_data": service}})
        return params

    def parse_params_override(self, params: Any) -> Any:
        """Applies `--params_override`."""
        override = self._flags_obj.params_override
        if override and os.path.isfile(override):
            self._override_by_file(params, override)
        elif override:
            with mutually_exclusive.log_replaced(params, "--params_override"):
                hyperparams.override_params_dict(params, override, is_strict=True)
        return params

    def parse_set(self, params: Any) -> Any:
        """Applies each `--set path=value`, in order. Together they are one source."""
        with mutually_exclusive.log_replaced(params, "--set"):
            self._set_all(params)
        return params

    def _set_all(self, params: Any) -> None:
        given: set[str] = set()
        for assignment in _flag(self._flags_obj, "set") or []:
            path, separator, value = assignment.partition("=")
            if not separator:
                raise errors.ConfigValueError(
                    f"--set={assignment} has no `=`; wanted --set=path=value, such as "
                    "--set=trainer.train_steps=100."
                )
            mutually_exclusive.refuse_both(params, path.strip(), value, given, "--set")
            hyperparams.set_by_path(params, path.strip(), value)
            given.add(path.strip())

    def _override_by_file(self, params: Any, config_file: str) -> None:
        values = yaml_io.read_yaml(config_file)
        with mutually_exclusive.log_replaced(params, config_file, values):
            params.override(values)
        directory = os.path.dirname(config_file)
        if values.get("workspace"):
            params.workspace = place(params.workspace, relative_to=directory)
        if not self._default_workspace and uses_workspace(values):
            self._default_workspace = place(directory or os.curdir)


def parse_configuration(flags_obj: Any, lock_return: bool = True, print_return: bool = True) -> Any:
    """The resolved, checked and (unless told otherwise) locked config of an experiment.

    Raises:
        errors.ConfigError: If something in it can't be.
    """
    params = ExperimentParser(flags_obj).parse()
    if _flag(flags_obj, "fast_dev_run"):
        phase_configs.override_all(params, lambda _: _FEW_STEPS)
    if _flag(flags_obj, "dry_run"):
        phase_configs.override_all(params, _one_step)
    params.validate()
    phase_configs.check(params)
    if not getattr(params, "phases", None):
        # A phase may change what an epoch is: each has its own worked out when it begins.
        params = epochs.resolve(params)
    config_definitions.warn_about_dead_fields(params)
    if lock_return:
        params.lock()
    else:
        params = params.replace()
    if print_return:
        logging.info("Final experiment parameters:\n%s", pprint.pformat(params.as_dict()))
    return params


def serialize_config(params: hyperparams.ParamsDict, model_dir: str) -> None:
    """Writes `params.yaml`, from which the run can be repeated, into the run's directory."""
    if model_dir is None:
        raise errors.ConfigValueError("`model_dir` must be specified, but got None.")
    files.makedirs(model_dir)
    hyperparams.save_params_dict_to_yaml(params, os.path.join(model_dir, "params.yaml"))


def to_yaml(params: hyperparams.ParamsDict) -> str:
    """The config as the text of a YAML file."""
    return yaml_io.to_yaml(params.as_dict())


def given_by_code(params: Any) -> list[Any]:
    """Return what no restriction refuses in a registered config: its texts and its entries."""
    # Another config may say where the workspace is: only this one's own can be trusted.
    expanded = expand(params) if getattr(params, "workspace", "") else params
    return [*hyperparams.texts(expanded), *_entries(expanded.as_dict())]


def import_modules(names: list[str] | None) -> None:
    """Imports modules, or files, for the experiments, tasks and trainers that they register.

    Raises:
        errors.UnknownNameError: If there is no such module. An error inside one comes through.
    """
    for name in names or []:
        with error_report.naming_the_line():
            plugins.load_module(name)


def _one_step(params: Any) -> dict[str, Any]:
    """What makes a training one step long, and asks for the length of an epoch if it would."""
    if getattr(params.trainer, "train_epochs", None) is None:
        return _ONE_STEP
    in_epochs = {**_ONE_STEP, "trainer.train_epochs": _LESS_THAN_A_STEP}
    del in_epochs["trainer.train_steps"]
    return in_epochs


def _entries(value: Any) -> Iterator[dict[str, Any]]:
    """The dictionaries with a `name`, however deep."""
    if isinstance(value, dict) and "name" in value:
        yield value
    if isinstance(value, dict | list | tuple):
        for element in value.values() if isinstance(value, dict) else value:
            yield from _entries(element)


def _flag(flags_obj: Any, name: str) -> Any:
    """The flag's value; None where a script does not define it."""
    return getattr(flags_obj, name) if name in flags_obj else None


PLACEHOLDER = "{workspace}"


def uses_workspace(values: Any) -> bool:
    """Whether a text in a config, or in a dict from a config file, has the placeholder."""
    return any(PLACEHOLDER in text for text in hyperparams.texts(values))


def expand(params: Any, default: str = "") -> Any:
    """The config with the workspace, absolute, in the place of the placeholder and in `workspace`.

    Args:
        params: The config. One without the field `workspace` may use the placeholder, too.
        default: The workspace if the config names none.

    Returns:
        An unlocked copy; or `params` itself if it uses no workspace and names none.

    Raises:
        errors.ConfigValueError: If there is a placeholder, but no workspace.
    """
    given = getattr(params, "workspace", "")
    is_used = uses_workspace(params)
    if not is_used and not given:
        return params
    if PLACEHOLDER in given:
        raise errors.ConfigValueError(f"`workspace` is {given!r}; wanted a directory.")
    directory = place(given or default)
    if not directory:
        raise errors.ConfigValueError(
            f"The config uses {PLACEHOLDER} and names no workspace. Set it, as in "
            "--set=workspace=path/to/directory, or put what uses it into a --config_file, whose "
            "directory is then the workspace."
        )
    expanded = hyperparams.map_texts(params, lambda text: text.replace(PLACEHOLDER, directory))
    if hasattr(expanded, "workspace"):
        expanded.workspace = directory
    return expanded


def place(directory: str, relative_to: str = "") -> str:
    """The directory as an absolute path; empty if it is."""
    if not directory or files.is_remote(directory):
        return directory
    return os.path.abspath(os.path.join(relative_to, os.path.expanduser(directory)))
