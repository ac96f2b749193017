"""The config that a command is about: that of a run, by anything in its folder, or an experiment's.

A folder does not say of which classes its `params.yaml` is; the experiment on the command line in
its `run.json` does, and what that command line has imported.
"""

import argparse
import dataclasses
import json
import os
import re
from typing import Any

from official_lite.common import errors, files
from official_lite.core import config_definitions, config_parsing, exp_factory, gin_flags
from official_lite.tools import registrations

__all__ = ["RunSource", "add_arguments", "read"]

_CONFIG = "params.yaml"
_RECORD = "run.json"
# `best_ckpt/best_ckpt-300` lies two levels below the run.
_LEVELS = 3

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
    parser.add_argument(
        "--set", action="append", default=[], metavar="PATH=VALUE", help="As of train.py."
    )
    registrations.add_import_argument(parser)


def read(name: str, args: argparse.Namespace, *, instead: str | None = None) -> RunSource:
    """The config that a name means, with what the arguments say laid over it.

    Args:
        name: The folder of a run, or a folder or a checkpoint in it; or else an experiment.
        args: Those of `add_arguments`.
        instead: What to do where there are several tasks, if the command is for one task only.

    Raises:
        errors.ConfigError: There is no such thing, or it can't be read, or has several tasks.
    """
    run_dir = _find_run_dir(name)
    if run_dir is None:
        registrations.load(args.imports)
        if name not in exp_factory.list_experiments() and _is_path(name):
            raise errors.ConfigValueError(
                f"{name} is not in the folder of a run: there is no {_CONFIG} there or above."
            )
        params = _parse(name, args)
        _refuse_several_tasks(params, name, instead)
        return RunSource(name=name, params=params)
    command = _read_command(run_dir)
    _load_registrations(args.imports, recorded=getattr(command, "import"), run_dir=run_dir)
    gin_flags.parse_gin_flags(command)
    experiment = args.experiment or command.experiment
    if not experiment:
        raise errors.ConfigValueError(
            f"{os.path.join(run_dir, _RECORD)} does not say which experiment {run_dir} is a run of."
            " Give it by --experiment."
        )
    params = _parse(experiment, args, config_file=os.path.join(run_dir, _CONFIG))
    _refuse_several_tasks(params, experiment, instead)
    return RunSource(name=name, params=params, run_dir=run_dir)


def _load_registrations(given: list[str], *, recorded: list[str], run_dir: str) -> None:
    """Imports what was given, or else what the run had imported, which may be elsewhere by now."""
    try:
        registrations.load(given or recorded)
    except errors.UnknownNameError as error:
        if given:
            raise
        raise errors.UnknownNameError(
            f"{error} It is what {os.path.join(run_dir, _RECORD)} says; --import names another."
        ) from error


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
    for flag in ("--import", "--gin_file", "--gin_params"):
        parser.add_argument(flag, action="append", default=[])
    command, _ = parser.parse_known_args([_SINGLE_DASH.sub("--", each) for each in argv])
    return command
