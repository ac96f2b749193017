"""The check that all workers of a run were started with the same config, code and data."""

import concurrent.futures
import contextlib
import hashlib
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import official_lite
from official_lite.common import errors, files, flags, tf_config
from official_lite.core import config_definitions, task_factory, trainer_factory
from official_lite.data import file_patterns
from official_lite.modeling import hyperparams
from official_lite.run import run_record

__all__ = ["list_code", "require_agreement"]


def list_code(params: config_definitions.ExperimentConfig) -> list[str]:
    """Return the sorted names and checksums of all Python files that a run uses.

    Hosts with the same code return the same list.

    Args:
        params: The config of the run.
    """
    paths = {**_files_of(official_lite.__name__)}
    for name in sorted(_modules_of(params)):
        paths |= _files_of(name)
    return [f"{name} {_checksum(path)}" for name, path in sorted(paths.items())]


def _modules_of(params: config_definitions.ExperimentConfig) -> set[str]:
    """Return the names of the modules that define the configs, the task and the trainer."""
    classes = [type(config) for config in _configs_in(params)]
    with contextlib.suppress(errors.UnknownNameError):
        classes.append(task_factory.get_task_cls(type(params.task)))
    with contextlib.suppress(errors.UnknownNameError):
        classes.append(trainer_factory.get_trainer_cls(params))
    return {str(getattr(each, "__module__", "")) for each in classes}


def _configs_in(value: object) -> Iterator[Any]:
    if isinstance(value, hyperparams.ParamsDict):
        yield value
        for element in vars(value).values():
            yield from _configs_in(element)
    elif isinstance(value, list | tuple):
        for element in value:
            yield from _configs_in(element)


def _files_of(module_name: str) -> dict[str, pathlib.Path]:
    """Return all files of a module's top-level package, by name, or the file of the module."""
    top = module_name.partition(".")[0]
    package = sys.modules.get(top)
    roots = [pathlib.Path(root) for root in getattr(package, "__path__", ())]
    if roots:
        return {
            f"{top}/{path.relative_to(root).as_posix()}": path
            for root in roots
            for path in root.rglob("*.py")
            if path.is_file()  # Some editors lock a file by a link to nowhere.
        }
    file = getattr(sys.modules.get(module_name), "__file__", None)
    return {pathlib.Path(file).name: pathlib.Path(file)} if file else {}


def _checksum(path: pathlib.Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return "unreadable"


# The maximum length of a line in an error message, in bytes.
_MOST_BYTES = 240

# The number of parallel requests for file sizes; each takes some 50 ms for a file in a bucket.
_MOST_THREADS = 32

_Gather = Callable[[Sequence[int]], np.ndarray[Any, Any]]


def require_agreement(
    params: config_definitions.ExperimentConfig,
    strategy: tf.distribute.Strategy,
    mode: str = "train",
) -> None:
    """Check that all workers of a `MultiWorkerMirroredStrategy` agree; every worker must call this.

    Args:
        params: The config of the run. The fields with a worker's place in the cluster may differ.
        strategy: The strategy; nothing is compared under strategies of other classes.
        mode: The mode of the run; the files of the training data are compared if it trains.

    Raises:
        errors.ConfigValueError: If the workers differ. The error is raised on all workers and shows
            the first difference.
    """
    found = tf_config.read_tf_config()
    is_several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    if not is_several or found is None or found.num_workers < 2:
        return
    parts = _parts(params, mode)
    names = list(found.members("chief", "worker"))
    gather = _create_gather(strategy, len(names))
    rows = gather([_number_of("\n".join(lines)) for lines in parts.values()])
    for column, (part, lines) in enumerate(parts.items()):
        if len(set(rows[:, column])) > 1:
            raise errors.ConfigValueError(_describe(part, lines, names, gather))


def _parts(params: config_definitions.ExperimentConfig, mode: str) -> dict[str, list[str]]:
    """Return the parts of a run that must be equal on all workers, each as lines of text."""
    runtime = params.runtime.replace(task_index=-1, worker_hosts=None)
    config = hyperparams.flatten(params.replace(runtime=runtime))
    return {
        "seed": [f"runtime.seed: {params.runtime.seed}"],
        "versions": [" ".join(item) for item in sorted(run_record.versions().items())],
        "config": [f"{path}: {value!r}" for path, value in config.items()],
        "code": list_code(params),
        "training data": list(_data_files(params)) if flags.Mode(mode).trains else [],
    }


def _data_files(value: object) -> Iterator[str]:
    """Yield the name and size of each training data file in the config."""
    if isinstance(value, config_definitions.DataConfig):
        if value.is_training and value.input_path and not value.enable_tf_data_service:
            yield from _sizes(value.input_path)
    elif isinstance(value, hyperparams.ParamsDict):
        for element in vars(value).values():
            yield from _data_files(element)
    elif isinstance(value, list | tuple):
        for element in value:
            yield from _data_files(element)


def _sizes(input_path: Sequence[str] | str | hyperparams.ParamsDict) -> list[str]:
    if isinstance(input_path, hyperparams.ParamsDict):
        return [line for path in input_path.as_dict().values() for line in _sizes(path)]
    try:
        found = file_patterns.match_files(input_path)
    except errors.OfficialLiteError as error:
        # Compare the message, because the error may occur on this worker only. If it occurs on all
        # workers, reading the data will raise it.
        return [str(error)]
    with concurrent.futures.ThreadPoolExecutor(_MOST_THREADS) as pool:
        sizes = pool.map(files.size, found)
    return [f"{file}, {size:,} bytes" for file, size in zip(found, sizes, strict=True)]


def _describe(part: str, lines: Sequence[str], names: Sequence[str], gather: _Gather) -> str:
    """Describe the first line that differs, and what each worker has in its place."""
    length = int(gather([len(lines)]).max())
    padded = [*lines, *[""] * (length - len(lines))]
    numbers = gather([_number_of(line) for line in padded])
    first = int(np.argmax((numbers != numbers[0]).any(axis=0)))
    shown = padded[first].encode()[:_MOST_BYTES].ljust(_MOST_BYTES, b"\0")
    texts = [
        bytes(row.astype(np.uint8)).rstrip(b"\0").decode(errors="replace")
        for row in gather(list(shown))
    ]
    others = np.flatnonzero(numbers[:, first] != numbers[0, first]).tolist()
    has = [f"{names[index]} has `{texts[index] or 'nothing'}`" for index in [0, *others]]
    return (
        f"The {part} of {names[0]} and of {', '.join(names[index] for index in others)} differ: "
        f"{', '.join(has)}. Start all workers with the same command, code and data."
    )


def _create_gather(strategy: tf.distribute.Strategy, num_workers: int) -> _Gather:
    """Create a function that gathers the numbers of all workers in a matrix, one row per worker."""

    def gather(numbers: Sequence[int]) -> np.ndarray[Any, Any]:
        own = tf.constant([numbers], tf.int64)
        rows = strategy.gather(strategy.run(lambda: own), axis=0).numpy()
        # Each worker's row is repeated for each of its replicas.
        return np.asarray(rows[:: len(rows) // num_workers])

    return gather


def _number_of(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], signed=True)
