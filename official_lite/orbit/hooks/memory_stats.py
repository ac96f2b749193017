"""A hook that logs how much memory the process and its devices use."""

import pathlib

import tensorflow as tf

from official_lite.orbit.hooks.hook import Hook

_MIB = 2**20
_STATUS = pathlib.Path("/proc/self/status")
# The names of Linux: the memory that is resident now, and the most that ever was.
_FIELDS = {"VmRSS": "memory/rss_mib", "VmHWM": "memory/peak_rss_mib"}


class MemoryStats(Hook):
    """Logs the memory use of this process and its GPUs to the event storage, in MiB.

    The names are `memory/rss_mib` and `memory/peak_rss_mib` for this process (Linux only), and
    `memory/<device>_mib` and `memory/peak_<device>_mib` for each GPU.

    With several workers, only the chief's values are written.

    Args:
      every_n_steps: The interval.
    """

    def __init__(self, every_n_steps: int = 100) -> None:
        self.every_n_steps = every_n_steps

    def after_step(self) -> None:
        for name, mib in {**_process_memory(), **_device_memory()}.items():
            self.controller.storage.put_scalar(name, mib, smoothing_hint=False)


def _process_memory() -> dict[str, float]:
    if not _STATUS.exists():
        return {}
    lines = (line.partition(":") for line in _STATUS.read_text().splitlines())
    kib = {field: value for field, _, value in lines if field in _FIELDS}
    return {_FIELDS[field]: int(value.split()[0]) / 1024 for field, value in kib.items()}


def _device_memory() -> dict[str, float]:
    figures: dict[str, float] = {}
    for device in tf.config.list_logical_devices("GPU"):
        name = device.name.removeprefix("/device:")
        info = tf.config.experimental.get_memory_info(name)
        label = name.replace(":", "_").lower()
        figures[f"memory/{label}_mib"] = info["current"] / _MIB
        figures[f"memory/peak_{label}_mib"] = info["peak"] / _MIB
    return figures
