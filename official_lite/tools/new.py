"""Writes a project to start from: an experiment of its own that trains at once, with its test.

python -m official_lite.tools new demo
cd demo && python train.py --experiment=demo/lines --mode=train_and_eval --model_dir=/tmp/demo

It has its own config, task, model and reading of data, out of memory or TFRecord files; nothing is
downloaded. The name becomes that of the folder, the package, the experiment and, in CamelCase, the
task.
"""

import argparse
import importlib.resources
import importlib.util
import keyword
import pathlib
import re
import string
from collections.abc import Iterator

from official_lite.common import errors

__all__ = ["add_arguments", "run", "write_project"]

# Names of the project's own files.
_TAKEN = frozenset({"registry_imports", "tests", "train"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "name", help="The name of the package, optionally with the path of its parent directory."
    )


def run(args: argparse.Namespace) -> int:
    """Write the project and print the first commands to run."""
    folder = pathlib.Path(args.name)
    write_project(folder)
    name = folder.name
    print(
        f"cd {folder}\n"
        f"python train.py --experiment={name}/lines --mode=train_and_eval --model_dir=/tmp/{name}\n"
        f"python -m pytest"
    )
    return int(errors.ExitCode.DONE)


def write_project(folder: pathlib.Path) -> None:
    """Write a project to `folder`, whose name becomes the name of the project.

    Raises:
        ConfigValueError: The name is not a valid package name, or the folder exists.
    """
    if folder.exists():
        raise errors.ConfigValueError(f"{folder} already exists. Nothing was changed.")
    name = folder.name
    _check(name)
    values = {"name": name, "camel": "".join(map(_capitalized, name.split("_")))}
    for path, text in _templates():
        target = folder / _target(path, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(string.Template(text).substitute(values), encoding="utf-8")


def _templates() -> Iterator[tuple[pathlib.PurePath, str]]:
    """Yield the paths, relative to the starter's folder, and texts of the templates."""
    starter = importlib.resources.files("official_lite.tools") / "starter"
    with importlib.resources.as_file(starter) as folder:
        for path in sorted(folder.rglob("*.template")):
            yield path.relative_to(folder), path.read_text(encoding="utf-8")


def _target(template: pathlib.PurePath, name: str) -> pathlib.PurePath:
    path = template.with_suffix("")
    if path.name == "gitignore":
        # Stored without its dot, because it would otherwise apply to this repository.
        return path.with_name(".gitignore")
    return pathlib.PurePath(name, *path.parts[1:]) if path.parts[0] == "package" else path


def _check(name: str) -> None:
    if not name.isidentifier() or not name.isascii():
        wish = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
        hint = f" `{wish}` can." if wish.isidentifier() else ""
        raise errors.ConfigValueError(f"{name!r} is not a valid name of a Python package.{hint}")
    if keyword.iskeyword(name):
        raise errors.ConfigValueError(
            f"{name!r} is a Python keyword. Use another name, such as `my_{name}`."
        )
    if name in _TAKEN or importlib.util.find_spec(name) is not None:
        raise errors.ConfigValueError(
            f"The project would hide the existing module {name!r}. Use another name, such as "
            f"`my_{name}`."
        )


def _capitalized(word: str) -> str:
    return word[:1].upper() + word[1:]
