"""Fixtures of every test: two logical CPU devices, parsed flags and a clean global state."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import collections
import gc
import hashlib
import itertools
import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import gin
import hypothesis
import pytest
from absl import flags, logging

from official_lite.common import plugins

if TYPE_CHECKING:
    import tensorflow as tf


pytest_plugins = ["tests.line_experiment"]

# Examples have no deadline, because other tests that run at the same time slow them down.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all variants of a test as slow, except for those in its sample."""
    variants = collections.defaultdict(list)
    for item in items:
        variants[item.nodeid.partition("[")[0]].append(item)
    for group in variants.values():
        if (sample := group[0].get_closest_marker("sample")) is not None:
            # Sorting by a hash mixes the variants; otherwise all in the sample may have one mode.
            # The name of the test does not count, so that renaming it keeps the sample.
            group.sort(key=lambda item: hashlib.sha256(_variant(item).encode()).digest())
            for item in group[sample.args[0] :]:
                item.add_marker("slow")


def _variant(item: pytest.Item) -> str:
    return item.name.partition("[")[2]


def pytest_collection_finish() -> None:
    """Freeze existing objects, because each run starts with a full garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def two_cpu_devices() -> None:
    """Add a logical CPU, so that `MirroredStrategy(["CPU:0", "CPU:1"])` works in any test."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


@pytest.fixture(autouse=True, scope="session")
def no_idle_autotuner() -> Iterator[None]:
    """Disable idle autotuning in all tests, so that dataset iterators are released at once.

    Otherwise the next garbage collection, in any test, waits as long as the iterators have lived.
    """
    import tensorflow as tf

    from official_lite.data import tf_data_options

    def settled(dataset: Any) -> Any:
        # Inside a `tf.function`, the runtime releases the iterator.
        eager = tf.executing_eagerly()
        return tf_data_options.without_idle_autotuner(dataset) if eager else dataset

    strategy_cls, dataset_cls = tf.distribute.Strategy, tf.data.Dataset
    iterate, distribute = dataset_cls.__iter__, strategy_cls.experimental_distribute_dataset
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset_cls, "__iter__", lambda self: iterate(settled(self)))
        patch.setattr(
            strategy_cls,
            "experimental_distribute_dataset",
            lambda self, dataset, *args: distribute(self, settled(dataset), *args),
        )
        yield


@pytest.fixture(autouse=True, scope="session")
def in_the_foreground() -> None:
    """Restore the default SIGINT handler, because background jobs of a shell ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def parsed_flags() -> None:
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()


@pytest.fixture(autouse=True)
def clean_global_state() -> Iterator[None]:
    """Reset gin, `--safe_config`, the level of the log, Keras' precision and the summary step."""
    yield
    logging.set_verbosity(logging.WARNING)
    plugins.restrict(None)
    gin.clear_config()
    if "keras" in sys.modules:
        import keras

        keras.mixed_precision.set_dtype_policy("float32")
    if "tensorflow" in sys.modules:
        import tensorflow as tf

        tf.summary.experimental.set_step(None)


@pytest.fixture
def log_as_train_py_does() -> None:
    logging.set_verbosity(logging.INFO)


@pytest.fixture(scope="session")
def bfloat16_kernels() -> None:
    """Skip a test that computes in bfloat16 if this would crash the process."""
    _skip_without_kernels("bfloat16")


@pytest.fixture(scope="session")
def float16_kernels() -> None:
    """Skip a test that computes in float16 if this would crash the process."""
    _skip_without_kernels("float16")


def _skip_without_kernels(dtype: str) -> None:
    """Skip a test if `ONEDNN_MAX_CPU_ISA` leaves oneDNN without products in a data type.

    TensorFlow asks the processor for its instructions, even if the environment variable limits
    oneDNN to older ones, and then a signal ends the process. Only a try in another process can
    tell.
    """
    if not (limit := os.environ.get("ONEDNN_MAX_CPU_ISA")):
        return
    program = f"import tensorflow as tf; x = tf.ones((8, 8), {dtype!r}); tf.linalg.matmul(x, x)"
    command = [sys.executable, "-c", program]
    crashes = (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGILL)
    if subprocess.run(command, capture_output=True, check=False).returncode in crashes:
        pytest.skip(f"oneDNN is limited to {limit}, so it has no kernels for {dtype}")


@pytest.fixture(scope="session")
def two_replicas() -> "tf.distribute.MirroredStrategy":
    """Return a strategy with two replicas on two logical CPUs.

    The strategy does not use the default collectives, because collectives of several strategies in
    one process conflict.
    """
    import tensorflow as tf

    return tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


@pytest.fixture
def short_data_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the search for bad numbers in training data end after one batch instead of 5 seconds."""
    from official_lite.data import input_errors

    seconds = itertools.count(step=100)
    clock = types.SimpleNamespace(monotonic=lambda: float(next(seconds)))
    monkeypatch.setattr(input_errors, "time", clock)
