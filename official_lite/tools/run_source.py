"""The config that a command is about: that of a run, by anything in its folder, or an experiment's.

A folder does not say of which classes its `params.yaml` is; the experiment on the command line in
its `run.json` does. What that command line imported is not imported here, since a folder may come
from anywhere: the command line of this command has to repeat it.
"""

import argparse
import dataclasses
import json
import os
import re
import shlex
from typing import Any

from official_lite.common import errors, files, plugins
from official_lite.core import config_definitions, config_parsing, exp_factory, gin_flags
from official_lite.tools import registrations

__all__ = ["RunSource", "add_arguments", "read"]

_CONFIG = "params.yaml"
_RECORD = "run.json"
# `best_ckpt/best_ckpt-300` lies two levels below the run.
_LEVELS = 3
_AS_OF = "As of train.py."

# What runs code, by the argument that it is kept in.
_CODE = {"imports": "--import", "gin_file": "--gin_file", "gin_params": "--gin_params"}
_SINGLE_DASH = re.compile(r"^-(?=(experiment|import|gin_file|gin_params)(=|$))")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSource:
    """A config, and the run that it is from.

    Attributes:
        name: As it was called.
        params: The config, typed and resolved.
        run_dir: The folder of the run; empty for an experiment that is none.
    """

    name: str
    params: Any
    run_dir: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what says more of the config."""
    parser.add_argument(
        "--experiment", help="Of a run: its experiment, if its run.json does not name it."
    )
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help=_AS_OF)
    parser.add_argument("--gin_file", action="append", default=[], metavar="FILE", help=_AS_OF)
    parser.add_argument("--gin_params", action="append", default=[], metavar="TEXT", help=_AS_OF)
    registrations.add_import_argument(parser)


def read(name: str, args: argparse.Namespace, *, instead: str | None = None) -> RunSource:
    """The config that a name means, with what the arguments say laid over it.

    Args:
        name: The folder of a run, or a folder or a checkpoint in it; or else an experiment.
        args: Those of `add_arguments`.
        instead: What to do where there are several tasks, if the command is for one task only.

    Raises:
        errors.ConfigError: There is no such thing, or it can't be read, or has several tasks; or
            the run has imported what the arguments do not.
    """
    run_dir = _find_run_dir(name)
    command = argparse.Namespace() if run_dir is None else _read_command(run_dir)
    if run_dir is not None:
        _require_given(command, args, run_dir)
    registrations.load(args.imports)
    gin_flags.parse_gin_flags(args)
    if run_dir is None:
        if name not in exp_factory.list_experiments() and _is_path(name):
            raise errors.ConfigValueError(
                f"{name} is not in the folder of a run: there is no {_CONFIG} there or above."
            )
        params = _parse(name, args)
        _refuse_several_tasks(params, name, instead)
        return RunSource(name=name, params=params)
    experiment = args.experiment or command.experiment
    if not experiment:
        raise errors.ConfigValueError(
            f"{os.path.join(run_dir, _RECORD)} does not say which experiment {run_dir} is a run of."
            " Give it by --experiment."
        )
    params = _parse(experiment, args, config_file=os.path.join(run_dir, _CONFIG))
    _trust_nothing_else(experiment, args, run_dir)
    _refuse_several_tasks(params, experiment, instead)
    return RunSource(name=name, params=params, run_dir=run_dir)


def _require_given(command: argparse.Namespace, args: argparse.Namespace, run_dir: str) -> None:
    """Refuse a run that was started with code, unless the arguments name such code themselves."""
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
            f"By its {_RECORD}, the run in {run_dir} was started with code that this command does "
            f"not run by itself, since a folder may come from anywhere. If you trust it, pass "
            f"{' '.join(missing)}"
        )


def _trust_nothing_else(experiment: str, args: argparse.Namespace, run_dir: str) -> None:
    """Let `params.yaml` name only what is registered, and what `--set` names as well."""
    trusted = config_parsing.given_by_code(exp_factory.get_exp_config(experiment))
    trusted += [assignment.partition("=")[2].strip("'\"") for assignment in args.set]
    path = os.path.join(run_dir, _CONFIG)
    reason = f"{path} may come from anywhere. What you trust, repeat by --set."
    plugins.restrict(plugins.Restriction(reason, trusted))


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


def _parse(experiment: str, args: argparse.Namespace, config_file: str = "") -> Any:
    options = config_parsing.ParseConfigOptions(
        experiment=experiment, config_file=[config_file] if config_file else [], set=args.set
    )
    return config_parsing.parse_configuration(options, print_return=False)


def _refuse_several_tasks(params: Any, experiment: str, instead: str | None) -> None:
    if instead is not None and not isinstance(params.task, config_definitions.TaskConfig):
        raise errors.ConfigValueError(
            f"{experiment} trains several tasks; this command is for experiments with one task. "
            f"{instead}"
        )


def _read_command(run_dir: str) -> argparse.Namespace:
    """What the command line of a run says of its experiment, if there is one."""
    path = os.path.join(run_dir, _RECORD)
    argv: list[str] = []
    if files.exists(path):
        try:
            argv = [str(each) for each in json.loads(files.read_text(path)).get("argv", [])[1:]]
        except (AttributeError, TypeError, ValueError) as error:
            raise errors.ConfigValueError(f"{path} can't be read: {error}") from error
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--experiment")
    for name, flag in _CODE.items():
        parser.add_argument(flag, dest=name, action="append", default=[])
    command, _ = parser.parse_known_args([_SINGLE_DASH.sub("--", each) for each in argv])
    return command
