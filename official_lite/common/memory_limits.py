"""The memory that this process may use, and the limit on its address space by `ulimit -v`."""

import pathlib
import resource

from absl import logging

from official_lite.common import errors

__all__ = ["available_memory", "check_limit", "describe_limit"]

# TensorFlow, Keras and their libraries alone map 1.7 GB. With less, some of them fail to load and
# others wait forever for memory.
_SMALLEST = 2_000_000_000


def check_limit() -> None:
    """Refuse a limit that is too small for TensorFlow, and warn about any other limit.

    Native code does not raise an error at this limit but ends the process, so this is the last
    moment to name the cause.

    Raises:
        errors.OutOfMemoryError: TensorFlow can't start within the limit.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return
    if limit < _SMALLEST:
        raise errors.OutOfMemoryError(
            f"The memory is too small: {describe_limit()}, and TensorFlow needs at least "
            f"{_SMALLEST / 1e9:.0f} GB to start. Raise the limit or remove it with `ulimit -v "
            "unlimited`."
        )
    logging.warning(
        "%s. TensorFlow reserves more of it than it uses. If the limit is reached, the process may "
        "crash with exit code 127, 134 or 139 instead of an error. To limit the memory, use a "
        "control group (systemd, Docker, Slurm) rather than `ulimit -v`.",
        describe_limit(),
    )


def describe_limit() -> str:
    """Return a clause that says how large the address space may become, or an empty string."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return ""
    return f"`ulimit -v` limits the address space of this process to {limit / 1e9:.1f} GB"


def available_memory() -> int | None:
    """Return the available bytes in this machine or container; None if the system does not say."""
    try:
        lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    sizes = dict(line.split(":", 1) for line in lines)
    if "MemAvailable" not in sizes:
        return None
    available = int(sizes["MemAvailable"].split()[0]) * 1024
    # The memory limit of a container, if this process runs in one.
    limit, used = (_read_number(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
    return available if limit is None or used is None else min(available, limit - used)


def _read_number(path: str) -> int | None:
    try:
        return int(pathlib.Path(path).read_text())
    except (OSError, ValueError):
        return None
