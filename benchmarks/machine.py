"""Descriptions of the machine and the software versions of a measurement."""

import datetime
import importlib.metadata
import os
import pathlib
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence

__all__ = ["describe", "versions_in"]

_PACKAGES = (
    "tensorflow",
    "keras",
    "tf-models-official",
    "tf_keras",
    "jax",
    "torch",
    "lightning",
    "grain",
    "numpy",
)


def describe() -> dict[str, str]:
    """Return the machine, the date and this interpreter's versions."""
    return {
        "date": datetime.date.today().isoformat(),
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "load": f"{os.getloadavg()[0]:.1f} when it began",
        "python": platform.python_version(),
        **_versions(_PACKAGES),
    }


def versions_in(pythons: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the versions of packages in other environments, by environment name.

    Args:
        pythons: The interpreters of the environments.
    """
    others = {name: python for name, python in pythons.items() if python != sys.executable}
    return {name: _ask(python) for name, python in others.items()}


def _versions(packages: Sequence[str]) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _ask(python: str) -> dict[str, str]:
    code = (
        "import importlib.metadata as m; "
        "print('\\n'.join(d.name + '=' + d.version for d in m.distributions() if d.name))"
    )
    output = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    versions = dict(line.split("=", 1) for line in output.stdout.splitlines())
    return {package: versions[package] for package in _PACKAGES if package in versions}


def _processor() -> str:
    cpu_info = pathlib.Path("/proc/cpuinfo")
    if cpu_info.exists():
        for line in cpu_info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
