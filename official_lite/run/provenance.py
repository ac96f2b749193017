"""The provenance of a run: its code, the installed packages, and its input files."""

import hashlib
import os
import platform
import subprocess
import sys
import sysconfig
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from official_lite.checkpoint import chain
from official_lite.common import files
from official_lite.config import parsing
from official_lite.data import file_patterns
from official_lite.modeling import hyperparams

# The name of the item that differs, its recorded value, and its current value.
Difference = tuple[str, str, str]

_INSTALLED = {"site-packages", "dist-packages"}
_DIST_INFO = ".dist-info"

# The prefix of the temporary files from which AutoGraph imports the code that it generates.
_GENERATED = "__autograph_generated_file"

# Fields that name files which a resumed training run does not read. The weights of such a run come
# from its own checkpoint.
_NOT_OF_TRAINING = ("init_checkpoint", "predict_data", "test_data")

# The timeout of a git command, which may have to read every file of a large repository.
_GIT_SECONDS = 10.0


def describe(input_patterns: Sequence[str]) -> dict[str, Any]:
    """Describe the code, the environment and the files that match the patterns, for `run.json`."""
    return {
        "code": describe_code(),
        "environment": describe_environment(),
        "inputs": file_patterns.describe(input_patterns),
    }


def summarize(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checksums of a description, and the state of git; empty if there is no code."""
    if "code" not in described:
        return {}
    return {
        "code_sha256": chain.checksum(described["code"]["files"]),
        "git": described["code"]["git"],
        "environment_sha256": chain.checksum(described["environment"]),
        "inputs_sha256": chain.checksum({"inputs": described["inputs"]}),
    }


def describe_code() -> dict[str, Any]:
    """Describe the Python files that this process has imported, except installed packages.

    Returns:
        `files`, the checksum of each file by path (None if it can't be read), and `git`, by the
        directory of each repository that contains such a file: the commit, and the checksum of the
        uncommitted changes (None if there are none).
    """
    found = sorted(_imported_files())
    roots = sorted({root for path in found if (root := _find_repository(path))})
    return {
        "files": {path: _sha256(path) for path in found},
        "git": {root: state for root in roots if (state := _describe_repository(root))},
    }


def describe_environment() -> dict[str, Any]:
    """Describe the interpreter and the installed packages."""
    names = {name for path in sys.path for name in _list_names(path)}
    packages = [name.removesuffix(_DIST_INFO) for name in names if name.endswith(_DIST_INFO)]
    versions = dict(sorted(package.rpartition("-")[::2] for package in packages))
    return {
        "python": platform.python_version(),
        "packages": versions,
    }


def find_input_patterns(params: hyperparams.Config) -> list[str]:
    """Return the paths and patterns that a run reads: those in its config, and those it has read.

    From the config, these are the fields `input_path` and `init_checkpoint`, and those in
    `TaskConfig.MODEL_FILES`.
    """
    found = dict.fromkeys(_configured_patterns(params.as_dict(), ""))
    found |= dict.fromkeys(parsing.model_file_paths(params).values())
    return list(found | dict.fromkeys(file_patterns.remembered()))


def find_training_patterns(params: hyperparams.Config) -> set[str]:
    """Return the paths and patterns in a config from which a resumed training may read.

    They are written as in the description of the input files.
    """
    found = _configured_patterns(params.as_dict(), "", skipped=_NOT_OF_TRAINING)
    return set(map(file_patterns.normalize, found))


def find_code_differences(recorded: Mapping[str, Any]) -> Iterator[Difference]:
    """Compare the files in a recorded description of the code with the current files."""
    for path, sha256 in recorded["files"].items():
        if not os.path.isfile(path):
            yield path, f"sha256 {sha256}", "no such file"
        elif sha256 is not None and (found := _sha256(path)) != sha256:
            yield path, f"sha256 {sha256}", f"sha256 {found}" if found else "an unreadable file"


def find_environment_differences(recorded: Mapping[str, Any]) -> Iterator[Difference]:
    """Compare a recorded description of the environment with the environment of this process."""
    found = describe_environment()
    if recorded["python"] != found["python"]:
        yield "Python", recorded["python"], found["python"]
    before, now = recorded["packages"], found["packages"]
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            yield name, before.get(name, "not installed"), now.get(name, "not installed")


def find_input_differences(recorded: Sequence[Mapping[str, Any]]) -> Iterator[Difference]:
    """Compare recorded descriptions of the input files with the current files."""
    for each in recorded:
        yield from file_patterns.find_differences(each)


def _imported_files() -> Iterator[str]:
    libraries = tuple(
        os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib")
    )
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if not isinstance(path, str) or not path.endswith(".py"):
            continue
        path = os.path.abspath(path)
        is_own = not path.startswith(libraries) and not _INSTALLED.intersection(path.split(os.sep))
        is_own = is_own and not os.path.basename(path).startswith(_GENERATED)
        if is_own and os.path.isfile(path):
            yield path


def _find_repository(path: str) -> str | None:
    while (parent := os.path.dirname(path)) != path:
        path = parent
        if os.path.exists(os.path.join(path, ".git")):
            return path
    return None


def _describe_repository(root: str) -> dict[str, Any] | None:
    """Return the commit and a checksum of a repository's uncommitted changes; None if git fails."""
    commit = _run_git(root, "rev-parse", "HEAD")
    changes = _run_git(root, "diff", "HEAD", "--no-ext-diff", "--no-textconv", "--binary")
    if commit is None or changes is None:
        return None
    return {
        "commit": commit.decode().strip(),
        "changes_sha256": hashlib.sha256(changes).hexdigest() if changes else None,
    }


def _run_git(root: str, *arguments: str) -> bytes | None:
    # Without this environment variable, git would write to the repository.
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        return subprocess.run(
            ["git", "-C", root, *arguments],
            capture_output=True,
            check=True,
            env=environment,
            timeout=_GIT_SECONDS,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def _configured_patterns(value: Any, name: str, skipped: Container[str] = ()) -> Iterator[str]:
    """Yield the input patterns in a value of the field `name`, and in all fields below it."""
    if name in skipped:
        return
    if isinstance(value, Mapping):
        for key, inner in value.items():
            below = "input_path" if name == "input_path" else key
            yield from _configured_patterns(inner, below, skipped)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _configured_patterns(inner, name, skipped)
    elif name == "input_path" and isinstance(value, str):
        yield from (pattern.strip() for pattern in value.split(",") if pattern.strip())
    elif name == "init_checkpoint" and isinstance(value, str) and files.exists(f"{value}.index"):
        # The value is a checkpoint path, which is only the common prefix of the checkpoint's files.
        yield from (f"{value}.index", f"{value}.data-*")
    elif name == "init_checkpoint" and isinstance(value, str) and os.path.isfile(value):
        yield value


def _list_names(path: str) -> list[str]:
    """Return the names in a directory of `sys.path`; none if the directory can't be read."""
    try:
        return os.listdir(path) if os.path.isdir(path) else []
    except OSError:
        return []


def _sha256(path: str) -> str | None:
    """Return the checksum of a file; None if it can't be read."""
    try:
        with files.open_file(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return None
