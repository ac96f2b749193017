"""Resolution of a name on a command line to an experiment, a config file, or a run.

`read_params` returns the typed config of an experiment, or of any path in the folder of a run. Such
a folder does not contain the config classes of its `params.yaml`; the experiment that its
`run.json` names determines them. Modules that the run's command line imported are not imported
here, because a folder may come from an untrusted source. The command line of the tool must name
them again. `read_config` returns plain values, which need no classes.
"""

import argparse
import dataclasses
import importlib
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import gin

from official_lite.common import (
    error_report,
    errors,
    files,
    flags,
    plugins,
    terminal,
)
from official_lite.config import compatibility, epochs, gin_config, parsing
from official_lite.core import config_definitions, exp_factory
from official_lite.modeling.hyperparams import yaml_io
from official_lite.run import run_reading

_REGISTRATIONS = "registry_imports"
_CONFIG = "params.yaml"
_RECORD = "run.json"
# The number of directories to search for `params.yaml`, starting with a path such as
# `best_ckpt/best_ckpt-300` and continuing with its parents.
_LEVELS = 3
_FILES = (".yaml", ".yml", ".json")
_AS_OF = "Same as in train.py."
_AS_OF_GIN = f"{_AS_OF} The fields of a run stay those of its {_CONFIG}; change them with --set."

# Flags that execute code, by the name of the argument that stores them.
_CODE = {"imports": "--import", "gin_file": "--gin_file", "gin_params": "--gin_params"}
_SINGLE_DASH = re.compile(r"^-(?=(experiment|import|gin_file|gin_params)(=|$))")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSource:
    """A config and the run that it belongs to.

    Attributes:
        params: The config, typed and resolved.
        run_dir: The model directory of the run; empty for an experiment.
    """

    params: Any
    run_dir: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfigSource:
    """A config and its origin.

    Attributes:
        name: The name as given.
        kind: `experiment`, `file` or `run`.
        config: Nested plain values. A file may contain only some of the fields.
        given: The fields by path, before `auto`, epochs and ratios were resolved; empty for a file.
    """

    name: str
    kind: str
    config: Mapping[str, Any]
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def values(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the fields by path, once as resolved and once as given."""
        became = compatibility.flatten(self.config)
        return became, {**became, **self.given}


def add_import_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--import`."""
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="A module or .py file to import for its registrations; repeatable.",
    )


def load_registrations(imports: list[str]) -> None:
    """Import `registry_imports` of the current directory, if it exists, and the given modules.

    Args:
        imports: Module names and file paths.

    Raises:
        errors.UnknownNameError: A module does not exist. Errors inside a module propagate.
    """
    # The installed command, unlike `python -m`, does not add the current directory to `sys.path`.
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    if os.path.exists(f"{_REGISTRATIONS}.py"):
        importlib.import_module(_REGISTRATIONS)
    parsing.import_modules(imports)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that modify the config."""
    parser.add_argument(
        "--experiment", help="The experiment of the run, if its run.json does not name it."
    )
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help=_AS_OF)
    for flag, metavar in (("--gin_file", "FILE"), ("--gin_params", "TEXT")):
        parser.add_argument(flag, action="append", default=[], metavar=metavar, help=_AS_OF_GIN)
    add_import_argument(parser)


def add_trust_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--trust`, for commands that train."""
    parser.add_argument(
        "--trust",
        action="store_true",
        help="Run all code that the record and the config of the run name. Use it for your own "
        "runs.",
    )


def train_command(
    run_dir: str, args: argparse.Namespace, mode: str | None = None, *, config: str = ""
) -> list[str]:
    """Return the command that starts another run with the config of a run, without `--model_dir`.

    The command imports what the arguments name and, under `--trust`, what the record of the run
    names. Without `--trust`, it has `--safe_config`, so that `params.yaml` can't run code.

    Args:
        run_dir: The model directory of a run.
        args: The arguments defined by `add_arguments` and `add_trust_argument`.
        mode: The mode of the command; None for the mode of the run.
        config: The file with the config; by default the `params.yaml` of the run.

    Raises:
        errors.ConfigError: The record can't be read, names no experiment, or does not describe a
            training run; or the run was started with code that the arguments do not name or trust.
    """
    config = config or os.path.join(run_dir, _CONFIG)
    if not files.exists(config):
        files.require_directory(run_dir)
        raise errors.ConfigValueError(
            f"{run_dir} is not a model directory: it has no {_CONFIG}. Pass the model directory "
            "of a run."
        )
    command = _read_command(run_dir)
    if not args.trust:
        _require_given(command, args, run_dir)
        _require_safe_gin(args)
    experiment = args.experiment or command.experiment
    trained = _read_record(run_dir).get("mode")
    if not experiment or trained not in [each.value for each in flags.Mode if each.trains]:
        raise errors.ConfigValueError(
            f"{os.path.join(run_dir, _RECORD)} does not name the experiment of {run_dir} or a mode "
            "that trains, so the run can't be repeated. Pass --experiment, or the model directory "
            "of a training run."
        )
    code = {name: getattr(args, name) or getattr(command, name) for name in _CODE}
    return [
        *(sys.executable, "-m", "official_lite.tools", "train"),
        *(f"{flag}={value}" for name, flag in _CODE.items() for value in code[name]),
        f"--experiment={experiment}",
        f"--mode={mode or trained}",
        # Apply the config after the gin bindings. Otherwise, gin would restore the original values
        # of fields that the run's command line changed.
        f"--params_override={config}",
        *([] if args.trust else ["--safe_config"]),
        *(f"--set={assignment}" for assignment in args.set),
    ]


def become(command: list[str]) -> NoReturn:
    """Print a command and replace this process by it."""
    terminal.say(shlex.join(command))
    sys.stderr.flush()
    os.execv(command[0], command)


def read_params(name: str, args: argparse.Namespace, *, instead: str | None = None) -> RunSource:
    """Read the config that a name refers to, and apply the arguments to it.

    Args:
        name: A model directory, or a folder or checkpoint in it; otherwise an experiment.
        args: The arguments defined by `add_arguments`.
        instead: For a command that supports only one task: what to do if there are several tasks.

    Raises:
        errors.ConfigError: The name is unknown, the config can't be read or has several tasks, or
            the run was started with code that the arguments do not name.
        errors.OutOfMemoryError: TensorFlow can't start in the address space of this process.
    """
    error_report.check_limit()
    experiment, run_dir = name, _find_run_dir(name)
    if run_dir is not None:
        command = _read_command(run_dir)
        _require_given(command, args, run_dir)
        experiment = args.experiment or command.experiment
    load_registrations(args.imports)
    gin_config.parse_gin_flags(args)
    if run_dir is None:
        if name not in exp_factory.list_experiments() and _is_path(name):
            raise errors.ConfigValueError(
                f"{name} is not in a model directory: neither it nor its parents contain {_CONFIG}."
                " Pass an experiment, a model directory or a path in one."
            )
        _require_experiment(name)
        params = _parse(name, [], args.set)
    elif not experiment:
        raise errors.ConfigValueError(
            f"{os.path.join(run_dir, _RECORD)} does not name the experiment of {run_dir}. Pass it "
            "as --experiment."
        )
    else:
        remedy = "If you trust these values, repeat them with --set."
        params = _read_run(run_dir, experiment, args.set, remedy)
    if instead is not None and not isinstance(params.task, config_definitions.TaskConfig):
        raise errors.ConfigValueError(
            f"{experiment} trains several tasks, but this command supports only experiments with "
            f"one task. {instead}"
        )
    return RunSource(params=params, run_dir=run_dir or "")


def read_run_params(path: str, experiment: str = "", *, trust: bool = False) -> RunSource:
    """Read the config of a run in Python, where the caller has imported what the run needs.

    Args:
        path: A model directory, or a folder or checkpoint in it.
        experiment: The experiment, if `run.json` does not name it or names code.
        trust: Whether the config may name code that is not registered. Otherwise the process is
            restricted to registered names, until `plugins.restrict` is called again.

    Raises:
        errors.ConfigError: There is no run, or its config is unknown or unreadable.
    """
    path = files.expand_home(path)
    run_dir = _find_run_dir(path)
    if run_dir is None:
        below = [os.path.join(path, name) for name in files.list_names(path)]
        phases = [each for each in below if files.exists(os.path.join(each, _CONFIG))]
        raise errors.ConfigValueError(
            f"{path} is not in a model directory: neither it nor its parents contain {_CONFIG}."
            + (
                f" Its phases do: pass one of {', '.join(phases)}."
                if phases
                else " Pass a model directory or a path in one."
            )
        )
    command = _read_command(run_dir)
    if (command.gin_file or command.gin_params) and not gin.config_str():
        raise errors.ConfigValueError(
            f"The run in {run_dir} was started with gin bindings of functions, which {_CONFIG} "
            "does not contain. Call `gin_config.parse_gin(files, bindings)` with "
            f"{command.gin_file} and {command.gin_params} first."
        )
    recorded = command.experiment or ""
    if not experiment and (not recorded or (plugins.names_code(recorded) and not trust)):
        raise errors.ConfigValueError(
            f"{os.path.join(run_dir, _RECORD)} names the experiment as code, {recorded!r}, which "
            "is not imported unless you allow it. If you trust the run, pass `trust=True`. "
            "Otherwise, pass the registered name of its experiment as `experiment`."
            if recorded
            else f"{os.path.join(run_dir, _RECORD)} does not record an experiment. Pass the "
            f"experiment of {run_dir} as `experiment`."
        )
    load_registrations([])
    remedy = "" if trust else "If you trust this run, pass trust=True."
    params = _read_run(run_dir, experiment or recorded, [], remedy)
    return RunSource(params=params, run_dir=run_dir)


def read_config(
    name: str, *, config_files: Sequence[str] = (), sets: Sequence[str] = ()
) -> ConfigSource:
    """Read the config that a name refers to. Experiments must already be registered.

    Args:
        name: A file that ends in `.yaml`, `.yml` or `.json`, a model directory, or else an
            experiment.
        config_files: For an experiment: files to apply, as with `--config_file`.
        sets: For an experiment: overrides `path=value`, as with `--set`.

    Raises:
        errors.ConfigError: There is no such config, or it can't be read.
    """
    source = _read_path(name)
    if source is None:
        _require_experiment(name)
        params = _parse(name, config_files, sets)
        given = compatibility.flatten(epochs.given(params).as_dict())
        return ConfigSource(name=name, kind="experiment", config=params.as_dict(), given=given)
    if config_files or sets:
        raise errors.ConfigValueError(
            f"--config_file and --set require an experiment, but {name} is a {source.kind}."
        )
    return source


def changes(old: ConfigSource, new: ConfigSource) -> list[compatibility.Change]:
    """Return the fields that differ, sorted by path.

    A field of a run is considered equal if either its given or its resolved value agrees, as when a
    run is restarted. Fields that a file does not contain are considered equal.
    """
    if {old.kind, new.kind} == {"experiment", "file"}:
        # Apply the file to the experiment, which converts types and renames the Model Garden's
        # fields.
        old, new = _laid_over(old, new), _laid_over(new, old)
    (became, given), (new_became, new_given) = old.values(), new.values()
    paths = {*became, *given} | {*new_became, *new_given}
    for one, other in ((old, new), (new, old)):
        if one.kind == "file" and other.kind != "file":
            paths &= {*one.values()[0]}
    found = []
    for path in sorted(paths):
        olds = [fields.get(path, compatibility.MISSING) for fields in (became, given)]
        news = [fields.get(path, compatibility.MISSING) for fields in (new_became, new_given)]
        if not any(value in news for value in olds):
            found.append(compatibility.Change(path=path, old=olds[0], new=news[0]))
    return found


def _require_given(command: argparse.Namespace, args: argparse.Namespace, run_dir: str) -> None:
    """Raise an error if the run was started with a flag that executes code and `args` lack it."""
    missing = [
        f"{flag}={shlex.quote(value)}"
        for name, flag in _CODE.items()
        if not getattr(args, name)
        for value in getattr(command, name)
    ]
    if not args.experiment and plugins.names_code(command.experiment or ""):
        missing.append(f"--experiment={shlex.quote(command.experiment)}")
    if missing:
        raise errors.ConfigValueError(
            f"According to its {_RECORD}, the run in {run_dir} imports code, which this command "
            f"does not run unless you confirm it. If you trust it, pass {' '.join(missing)}"
        )


def _require_safe_gin(args: argparse.Namespace) -> None:
    """Raise an error if gin arguments can run code, which `--safe_config` would refuse later."""
    try:
        gin_config.refuse_code(args.gin_file, args.gin_params)
    except gin_config.CodeInGinError as error:
        raise errors.ConfigValueError(
            "Without --trust, this command gives --safe_config, and gin may bind only fields of "
            "the experiment. If you trust the run, with all other code that its record and config "
            f"name, pass --trust. {error}"
        ) from error


def _read_run(run_dir: str, experiment: str, sets: Sequence[str], remedy: str) -> Any:
    """Read a run's config. If `remedy` is not empty, treat the config as untrusted.

    Gin bindings of this process are not applied. `params.yaml` already contains the fields that gin
    set for the recorded run, unless its command line replaced them.

    An untrusted config may refer only to registered classes and functions, and to those that the
    experiment or `sets` refers to. Errors about other references end with `remedy`.
    """
    path = os.path.join(run_dir, _CONFIG)
    params = _parse(experiment, [path], sets, apply_gin=False)
    if remedy:
        trusted = parsing.given_by_code(exp_factory.get_exp_config(experiment))
        trusted += [assignment.partition("=")[2].strip("'\"") for assignment in sets]
        plugins.restrict(plugins.Restriction(f"{path} is not trusted. {remedy}", trusted))
    return params


def _find_run_dir(name: str) -> str | None:
    if not _is_path(name):
        return None
    directory = name.rstrip("/") or name
    for _ in range(_LEVELS):
        if files.exists(os.path.join(directory, _CONFIG)):
            return directory
        directory = os.path.dirname(directory) or os.curdir
    return None


def _is_path(name: str) -> bool:
    return files.exists(name) or files.exists(f"{name}.index")


def _require_experiment(name: str) -> None:
    """Raise an error unless the experiment exists; the message also suggests run directories."""
    try:
        exp_factory.get_config_factory(name)
    except errors.UnknownNameError as error:
        if plugins.names_code(name):
            raise
        message = f"{error} There is no run directory {name!r} either. {files.did_you_mean(name)}"
        raise errors.UnknownNameError(message.rstrip()) from error


def _parse(
    experiment: str, config_files: Sequence[str], sets: Sequence[str], *, apply_gin: bool = True
) -> Any:
    options = parsing.ParseConfigOptions(
        experiment=experiment, config_file=[*config_files], set=[*sets], apply_gin=apply_gin
    )
    return parsing.parse_configuration(options, print_return=False)


def _read_command(run_dir: str) -> argparse.Namespace:
    """Parse `--experiment` and the flags in `_CODE` from a run's recorded command line, if any."""
    argv = _read_record(run_dir).get("argv", [])
    if not isinstance(argv, list):
        raise errors.ConfigValueError(
            f"{os.path.join(run_dir, _RECORD)} can't be read: `argv` is {argv!r}; expected a list"
        )
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--experiment")
    for name, flag in _CODE.items():
        parser.add_argument(flag, dest=name, action="append", default=[])
    command, _ = parser.parse_known_args([_SINGLE_DASH.sub("--", str(each)) for each in argv[1:]])
    return command


def _read_record(run_dir: str) -> dict[str, Any]:
    """Return the content of `run.json`; an empty dictionary if there is none."""
    path = os.path.join(run_dir, _RECORD)
    try:
        return files.read_json(path) if files.exists(path) else {}
    except ValueError as error:
        raise errors.ConfigValueError(f"{path} can't be read: {error}") from error


def _read_path(name: str) -> ConfigSource | None:
    """Read a file or a run; return None if the name must refer to an experiment."""
    if name.endswith(_FILES):
        return ConfigSource(name=name, kind="file", config=yaml_io.read_yaml(name))
    if not os.path.isdir(name):
        return None
    if not run_reading.is_run(name):
        if name in exp_factory.list_experiments():
            return None
        raise errors.ConfigValueError(
            f"The directory {name} is not a model directory: it has no run.json. Pass the model "
            "directory of a run."
        )
    run = run_reading.read_run(name)
    if not run.config:
        why = "; ".join(run.problems) or "it has no params.yaml"
        raise errors.ConfigValueError(f"The config of the run in {name} can't be read: {why}.")
    return ConfigSource(name=name, kind="run", config=run.config, given=run.given)


def _laid_over(one: ConfigSource, other: ConfigSource) -> ConfigSource:
    """Return `one` applied to the experiment `other` if `one` is a file; otherwise return `one`."""
    return read_config(other.name, config_files=[one.name]) if one.kind == "file" else one
