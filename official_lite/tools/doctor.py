"""Check this machine and run a small training job.

    python -m official_lite.tools doctor
    python -m official_lite.tools doctor --model_dir=/data/runs --json

The command checks the versions of packages, the devices and the strategy that would be selected,
the cluster in TF_CONFIG, and the free disk space and memory. It then trains for a few seconds on
generated data. The exit code is 0 if all checks pass, and 1 otherwise.
"""

import argparse
import dataclasses
import importlib.metadata
import os
import pathlib
import platform
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator

from packaging import requirements

from official_lite.common import error_report, errors, tf_config
from official_lite.run import run_record
from official_lite.tools import listing

_PACKAGE = "official-lite"
# The minimum free disk space and memory in bytes; less is reported as a problem.
_MIN_DISK = 1_000_000_000
_MIN_MEMORY = 1_000_000_000
_MARKS = {True: "ok", False: "WRONG", None: ""}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """The result of one check.

    Attributes:
        name: What was checked.
        value: What was found.
        ok: Whether the check passed; None if it only informs.
    """

    name: str
    value: str
    ok: bool | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--model_dir",
        default=os.curdir,
        help="The directory for runs. Default: the current directory.",
    )
    parser.add_argument(
        "--skip_smoke_run",
        action="store_true",
        help="Only inspect the machine, without training or compiling.",
    )
    listing.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print the results and return 1 if something is wrong."""
    looks: dict[str, Callable[[], Iterator[Check]]] = {
        "packages": _packages,
        "machine": lambda: _machine(args.model_dir),
        "cluster": _cluster,
        "devices": _devices,
    }
    if not args.skip_smoke_run:
        looks["smoke run"] = _smoke_run
    rows = [
        {"section": section, **dataclasses.asdict(check)}
        for section, look in looks.items()
        for check in _attempt(look)
    ]
    is_well = all(row["ok"] is not False for row in rows)
    if args.json:
        listing.print_json({"ok": is_well, "checks": rows})
    else:
        rows = [{**row, "": _MARKS[row["ok"]]} for row in rows]
        listing.print_table(rows, ["section", "name", "", "value"])
        print("\nNo problems found." if is_well else "\nFound problems; see WRONG above.")
    return int(errors.ExitCode.DONE if is_well else errors.ExitCode.FAILED)


def _attempt(look: Callable[[], Iterator[Check]]) -> list[Check]:
    """Run the checks of a section; report an error as a failed check and continue."""
    found: list[Check] = []
    try:
        found += look()
    except Exception as error:
        if not isinstance(error, errors.OfficialLiteError):
            traceback.print_exc()
        found.append(Check(name="failed", value=f"{type(error).__name__}: {error}", ok=False))
    return found


def _packages() -> Iterator[Check]:
    yield Check(name="python", value=platform.python_version(), ok=True)
    version = importlib.metadata.version(_PACKAGE)
    yield Check(name=_PACKAGE, value=version, ok=True)
    for text in importlib.metadata.requires(_PACKAGE) or []:
        wanted = requirements.Requirement(text)
        # `extra` is empty if the package is always required.
        extra = text.partition("extra ==")[2].strip(" '\"")
        if extra != "dev":
            yield _package(wanted, extra)


def _package(wanted: requirements.Requirement, extra: str) -> Check:
    try:
        version = importlib.metadata.version(wanted.name)
    except importlib.metadata.PackageNotFoundError:
        hint = f"not installed; pip install '{_PACKAGE}[{extra}]'" if extra else "not installed"
        return Check(name=wanted.name, value=hint, ok=None if extra else False)
    fits = wanted.specifier.contains(version, prereleases=True)
    value = version if fits else f"{version}; expected {wanted.specifier}"
    return Check(name=wanted.name, value=value, ok=fits)


def _machine(model_dir: str) -> Iterator[Check]:
    yield Check(name="platform", value=platform.platform())
    yield Check(name="CPUs", value=f"{_num_cpus()} of {os.cpu_count()}")
    memory = error_report.available_memory()
    if memory is not None:
        value = f"{listing.bytes_text(memory)} available"
        yield Check(name="memory", value=value, ok=memory >= _MIN_MEMORY)
    run_record.check_model_dir(model_dir)
    there = pathlib.Path(model_dir).absolute()
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    value = f"{listing.bytes_text(free)} free in {model_dir}"
    yield Check(name="disk", value=value, ok=free >= _MIN_DISK)


def _num_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cluster() -> Iterator[Check]:
    found = tf_config.read_tf_config()
    if found is not None:
        jobs = ", ".join(f"{len(addresses)} {job}" for job, addresses in found.jobs.items())
        value = f"{found.name} of {jobs}"
    else:
        value = "a Slurm step" if tf_config.read_slurm_step(os.environ) else "not set: one process"
    yield Check(name="TF_CONFIG", value=value, ok=True)


def _devices() -> Iterator[Check]:
    import tensorflow as tf

    for device in tf.config.list_physical_devices():
        details = tf.config.experimental.get_device_details(device)
        name = device.name.removeprefix("/physical_device:")
        value = str(details.get("device_name", device.device_type))
        yield Check(name=name, value=value)
    if not tf.config.list_physical_devices("GPU"):
        built = "TensorFlow is built with" + ("" if tf.test.is_built_with_cuda() else "out")
        yield Check(name="GPUs", value=f"none; {built} CUDA")
    yield _strategy()


def _strategy() -> Check:
    """Check the strategy that the default `runtime` config selects."""
    from official_lite.core import config_definitions
    from official_lite.run import runtime

    config = config_definitions.RuntimeConfig()
    strategy = runtime.build_strategy(config)
    value = (
        f"{type(strategy).__name__} with {strategy.num_replicas_in_sync} replica(s), by "
        f"distribution_strategy={config.distribution_strategy}, num_gpus={config.num_gpus}"
    )
    return Check(name="strategy", value=value, ok=True)


def _smoke_run() -> Iterator[Check]:
    from official_lite.tools import smoke_run

    result = smoke_run.run()
    value = (
        f"{result.steps} steps and two starts in {result.seconds:.1f} s; loss "
        f"{result.first_loss:.3g} -> {result.last_loss:.3g}; resumed from step "
        f"{result.resumed_from}"
    )
    yield Check(name="training", value=value, ok=result.is_good)
