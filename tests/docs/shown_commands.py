"""Checks of the commands on pages by the parsers and configs that would receive them."""

import argparse
import copy
import functools
import importlib
import importlib.util
import pathlib
import re
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from typing import Any

from absl import flags

import registry_imports  # noqa: F401  (imported for its registrations)
from official_lite.common import flags as experiment_flags
from official_lite.config import parsing
from official_lite.core import exp_factory
from official_lite.modeling import hyperparams
from official_lite.tools import __main__ as tools
from tests.docs import blocks, reviewed

# The characters that end a placeholder, which readers must replace.
_LEFT_OPEN = ("…", "...")


def words(command: str) -> list[str]:
    """Return the words of a command, without placeholders."""
    return [word for word in shlex.split(command, comments=True) if not word.endswith(_LEFT_OPEN)]


def check(command: str) -> None:
    """Raise an error if a program would reject its arguments in the command."""
    assignment = re.fullmatch(r"\w+=\$\((.*)\)", command)
    for part in _split(words(assignment[1] if assignment else command), "&&"):
        _check_program([word for word in part if not re.fullmatch(r"[A-Z_]+=.*", word)])


def check_train_flags(arguments: Sequence[str]) -> None:
    """Check the names of `train.py` flags, the experiment, and the path of each `--set` field."""
    experiment_flags.define_flags()
    parsed = copy.deepcopy(flags.FLAGS)
    if "enable_async_checkpointing" not in parsed:
        flags.DEFINE_bool("enable_async_checkpointing", True, "", flag_values=parsed)
    parsed.unparse_flags()
    left_over = parsed(["train.py", *arguments])[1:]
    assert not left_over, f"train.py does not accept {left_over}"
    is_known = parsed.experiment in exp_factory.list_experiments()
    is_the_readers = parsed["import"].value or parsed.experiment in reviewed.NOT_REGISTERED
    if parsed.experiment and (is_known or not is_the_readers):
        # The config files are not read, because only the reader has them.
        parsed.config_file = None
        parsing.parse_configuration(parsed)


def is_a_path(path: str) -> bool:
    """Return whether an experiment has a field with a path or pattern like `trainer.*_interval`."""
    pattern = ".*".join(map(re.escape, path.split("*")))
    return any(re.fullmatch(rf"{pattern}(\..*)?", known) for known in _paths())


@functools.cache
def _paths() -> frozenset[str]:
    found: set[str] = set()
    for name in exp_factory.list_experiments():
        found |= set(hyperparams.flatten(exp_factory.get_exp_config(name).as_dict()))
    return frozenset(found)


def _check_program(command: Sequence[str]) -> None:
    program, *arguments = command
    program = program.rpartition("/")[2]
    if program in ("python", "python3"):
        _check_python(arguments)
    elif program == "sbatch":
        assert (blocks.ROOT / arguments[0]).exists()
        check_train_flags(arguments[1:])
    elif program == "bash":
        assert (blocks.ROOT / arguments[0]).exists()
    elif program == "pip":
        _check_extras(arguments)
    elif program == "docker":
        _check_docker(arguments)
    else:
        assert program in ("ruff", "mypy"), (
            f"Unknown command {shlex.join(command)!r}. Check it, or list it as reviewed."
        )


def _check_docker(arguments: list[str]) -> None:
    if arguments[0] == "build":
        assert (blocks.ROOT / arguments[arguments.index("-f") + 1]).exists()
    else:
        check_train_flags(arguments[arguments.index("train.py") + 1 :])


def _check_python(arguments: Sequence[str]) -> None:
    first, *others = arguments
    if first == "train.py":
        check_train_flags(others)
    elif first == "-m":
        _check_module(*others)
    elif first != "-c":
        assert (blocks.ROOT / first).exists(), f"There is no {first}."


def _check_module(module: str, *arguments: str) -> None:
    if module == "official_lite.tools":
        _check_tool(arguments)
        return
    spec = importlib.util.find_spec(module)
    assert spec is not None, module
    if module.startswith("benchmarks"):
        own = next(_split(arguments, "--"))
        places = spec.submodule_search_locations
        files = pathlib.Path(places[0]).glob("*.py") if places else [pathlib.Path(str(spec.origin))]
        source = "".join(file.read_text() for file in files)
        for name in re.findall(r"(--[a-z][\w-]*)", " ".join(own)):
            assert name in source, f"{module} has no {name}"


def _check_tool(arguments: Sequence[str]) -> None:
    if not arguments or arguments[0] == "COMMAND":
        return
    name, *others = arguments
    assert name in tools._COMMANDS, f"There is no tool {name!r}."
    if not others:
        return
    parser = argparse.ArgumentParser(prog=name, allow_abbrev=False, exit_on_error=False)
    module = importlib.import_module(f"official_lite.tools.{name}")
    module.add_arguments(parser)
    parsed = parser.parse_args(others)
    command = getattr(parsed, "command", None)
    if isinstance(command, list) and command[:1] == ["train.py"]:
        check_train_flags(command[1:])


def _check_extras(arguments: Sequence[str]) -> None:
    project: Any = tomllib.loads((blocks.ROOT / "pyproject.toml").read_text())["project"]
    for extras in re.findall(r"(?:official-lite|\.)\[([\w,]+)\]", " ".join(arguments)):
        assert set(extras.split(",")) <= set(project["optional-dependencies"]), extras


def _split(words: Sequence[str], separator: str) -> Iterator[list[str]]:
    part: list[str] = []
    for word in words:
        if word == separator:
            yield part
            part = []
        else:
            part.append(word)
    yield part
