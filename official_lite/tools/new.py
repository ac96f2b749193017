"""Create a new project: an experiment that trains right away, with sample data and a test.

    python -m official_lite.tools new demo
    python -m official_lite.tools new demo --kind=image
    cd demo && python train.py --experiment=demo/images --mode=train_and_eval --model_dir=/tmp/demo

The kinds `image`, `tabular` and `text` classify a folder of images, the rows of a CSV file, or
texts. Without --kind, the project reads from memory or from TFRecord files. Every project has its
own config, task, model and data reading; nothing is downloaded. The name becomes the name of the
directory, the package, the experiment and, in CamelCase, the task.
"""

import argparse
import dataclasses
import importlib.resources
import importlib.util
import keyword
import pathlib
import re
import string
import subprocess
import sys
from collections.abc import Iterator, Mapping

from official_lite.common import errors, suggestions


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of project.

    Attributes:
        experiment: The second part of the name of the experiment.
        layers: The folders in `starter` whose templates make up the project. The last one is the
            kind's own; the texts in its `slots` replace `$slot` in all templates.
        values: Other names in the templates and what replaces them.
    """

    experiment: str
    layers: tuple[str, ...]
    values: Mapping[str, str] = dataclasses.field(default_factory=dict)


_TENSORS = "import keras\nimport tensorflow as tf\n"
_CSV = {"train_path": "data/train.csv", "validation_path": "data/validation.csv"}

KINDS = {
    "lines": Kind("lines", ("common", "lines")),
    "image": Kind(
        "images",
        ("common", "classifier", "image"),
        {
            "title": "Classification of images in folders.",
            "accuracy": "about 0.99",
            "train_path": "data/train",
            "validation_path": "data/validation",
            "imports": "import keras\n",
        },
    ),
    "tabular": Kind(
        "table",
        ("common", "classifier", "csv", "tabular"),
        {
            "title": "Prediction of a column of a CSV file from the others.",
            "accuracy": "about 0.92",
            "imports": _TENSORS,
            **_CSV,
        },
    ),
    "text": Kind(
        "texts",
        ("common", "classifier", "csv", "text"),
        {
            "title": "Classification of texts.",
            "accuracy": "about 0.97",
            "imports": _TENSORS,
            **_CSV,
        },
    ),
}

_DEFAULT = "lines"

# Reserved package names, which other files of the project use.
_TAKEN = frozenset({"data", "make_data", "registry_imports", "tests", "train"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "name", help="The name of the package, optionally with the path of its parent directory."
    )
    parser.add_argument(
        "--kind",
        default=_DEFAULT,
        metavar="|".join(KINDS),
        help="What the project learns from. Default: %(default)s of source code.",
    )


def run(args: argparse.Namespace) -> int:
    """Write the project and print the first commands to run."""
    folder = pathlib.Path(args.name)
    write_project(folder, args.kind)
    name, experiment = folder.name, KINDS[args.kind].experiment
    print(
        f"cd {folder}\n"
        f"python train.py --experiment={name}/{experiment} --mode=train_and_eval "
        f"--model_dir=/tmp/{name}\n"
        f"python -m pytest"
    )
    return int(errors.ExitCode.DONE)


def write_project(folder: pathlib.Path, kind: str = _DEFAULT) -> None:
    """Write a project to `folder`, whose name becomes the name of the project.

    Args:
        folder: Where the project goes.
        kind: One of `KINDS`.

    Raises:
        ConfigValueError: The name is not a valid package name, or the folder exists.
        UnknownNameError: There is no such kind.
    """
    if kind not in KINDS:
        raise errors.UnknownNameError(
            f"There is no project kind {kind!r}. {suggestions.did_you_mean(kind, KINDS)}"
        )
    if folder.exists():
        raise errors.ConfigValueError(
            f"{folder} already exists, so nothing was written. Use another name."
        )
    name = folder.name
    _check(name)
    camel = "".join(map(_capitalized, name.split("_")))
    values = {"name": name, "camel": camel, "experiment": KINDS[kind].experiment}
    for path, text in _filled_templates(KINDS[kind], values):
        target = folder / _target(path, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    if (folder / "make_data.py").exists():
        subprocess.run([sys.executable, "make_data.py"], cwd=folder, check=True)


def _filled_templates(
    kind: Kind, values: Mapping[str, str]
) -> Iterator[tuple[pathlib.PurePath, str]]:
    """Yield the relative path of each template of the project, and the resulting text."""
    resource = importlib.resources.files("official_lite.tools") / "starter"
    with importlib.resources.as_file(resource) as starter:
        slots = {
            path.stem: string.Template(_read(path).rstrip("\n")).substitute(values)
            for path in (starter / kind.layers[-1] / "slots").glob("*.slot")
        }
        for layer in kind.layers:
            for path in sorted((starter / layer).rglob("*.template")):
                template = string.Template(_read(path))
                text = template.substitute({**values, **kind.values, **slots})
                yield path.relative_to(starter / layer), text


def _read(path: pathlib.Path) -> str:
    return path.read_text(encoding="utf-8")


def _target(template: pathlib.PurePath, name: str) -> pathlib.PurePath:
    path = template.with_suffix("")
    if path.name == "gitignore":
        # The template is named `gitignore`, because `.gitignore` would apply to this repository.
        return path.with_name(".gitignore")
    return pathlib.PurePath(name, *path.parts[1:]) if path.parts[0] == "package" else path


def _check(name: str) -> None:
    if not name.isidentifier() or not name.isascii():
        wish = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
        hint = f" Use `{wish}`." if wish.isidentifier() else " Start it with a letter."
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
