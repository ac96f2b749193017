"""Which code a run is made of, so that workers can compare it.

A version number says little while code is being written. So each file counts: those of this
package, and those of the packages that the experiment's config, task and trainer come from.
"""

import contextlib
import hashlib
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import official_lite
from official_lite.common import errors
from official_lite.core import task_factory, trainer_factory
from official_lite.modeling import hyperparams

__all__ = ["list_code"]


def list_code(params: Any) -> list[str]:
    """Name and checksum of each Python file, sorted; the same on hosts with the same code.

    Args:
        params: The config of the run.
    """
    paths = {**_files_of(official_lite.__name__)}
    for name in sorted(_modules_of(params)):
        paths |= _files_of(name)
    return [f"{name} {_checksum(path)}" for name, path in sorted(paths.items())]


def _modules_of(params: Any) -> set[str]:
    """The modules that define what the config names."""
    classes = [type(config) for config in _configs_in(params)]
    with contextlib.suppress(errors.UnknownNameError):
        classes.append(task_factory.get_task_cls(type(params.task)))
    with contextlib.suppress(errors.UnknownNameError):
        classes.append(trainer_factory.get_trainer_cls(params))
    return {str(getattr(each, "__module__", "")) for each in classes}


def _configs_in(value: Any) -> Iterator[Any]:
    if isinstance(value, hyperparams.ParamsDict):
        yield value
        for element in vars(value).values():
            yield from _configs_in(element)
    elif isinstance(value, list | tuple):
        for element in value:
            yield from _configs_in(element)


def _files_of(module_name: str) -> dict[str, pathlib.Path]:
    """All files of the package that a module is in, by their names there; or the module's own."""
    top = module_name.partition(".")[0]
    package = sys.modules.get(top)
    roots = [pathlib.Path(root) for root in getattr(package, "__path__", ())]
    if roots:
        return {
            f"{top}/{path.relative_to(root).as_posix()}": path
            for root in roots
            for path in root.rglob("*.py")
        }
    file = getattr(sys.modules.get(module_name), "__file__", None)
    return {pathlib.Path(file).name: pathlib.Path(file)} if file else {}


def _checksum(path: pathlib.Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
