"""What every test gets: two logical CPU devices, parsed flags, no state from the test before."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import collections
import gc
import hashlib
import itertools
import signal
import sys
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import gin
import hypothesis
import pytest
from absl import flags

from official_lite.common import plugins

if TYPE_CHECKING:
    import tensorflow as tf


pytest_plugins = ["tests.line_experiment"]

# How long an example takes is the machine's affair, and here other tests run beside it.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the variants that are not in the sample of their test as slow."""
    variants = collections.defaultdict(list)
    for item in items:
        variants[item.nodeid.partition("[")[0]].append(item)
    for group in variants.values():
        if (sample := group[0].get_closest_marker("sample")) is not None:
            # By a hash, because every second variant of a product may have the same mode.
            group.sort(key=lambda item: hashlib.sha256(item.name.encode()).digest())
            for item in group[sample.args[0] :]:
                item.add_marker("slow")


def pytest_collection_finish() -> None:
    """Keeps the collector from what lasts: a run starts with a full collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def two_cpu_devices() -> None:
    """A second logical CPU, so that `MirroredStrategy(["CPU:0", "CPU:1"])` works in any test."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


@pytest.fixture(autouse=True, scope="session")
def no_idle_autotuner() -> Iterator[None]:
    """Release the iterators of a test at once, although the test does not switch the tuner off.

    The next collection of garbage, in any other test, would wait for as long as they have lived.
    """
    import tensorflow as tf

    from official_lite.data import tf_data_options

    def settled(dataset: Any) -> Any:
        # Inside a function, the runtime releases the iterator.
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
    """What a shell starts in the background ignores SIGINT, and so would all that it starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def parsed_flags() -> None:
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()


@pytest.fixture(autouse=True)
def clean_global_state() -> Iterator[None]:
    """Forgets gin's bindings, `--safe_config`, Keras' precision and the default summary step."""
    yield
    plugins.restrict(None)
    gin.clear_config()
    if "keras" in sys.modules:
        import keras

        keras.mixed_precision.set_dtype_policy("float32")
    if "tensorflow" in sys.modules:
        import tensorflow as tf

        tf.summary.experimental.set_step(None)


@pytest.fixture(scope="session")
def bfloat16_kernels() -> None:
    """Skip a test that computes in bfloat16 where this would end the process.

    TensorFlow asks the processor whether oneDNN can do so, and not oneDNN, which a variable of the
    environment may limit to older instructions.
    """
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "DEFAULT").upper()
    if limit.startswith(("SSE", "AVX_", "AVX2")) or limit == "AVX":
        pytest.skip(f"oneDNN is limited to {limit}, so it has no kernels for bfloat16")


@pytest.fixture(scope="session")
def two_replicas() -> "tf.distribute.MirroredStrategy":
    """Two replicas on two logical CPUs.

    Not by the default collectives: a second strategy in one process would meet the first one's.
    """
    import tensorflow as tf

    return tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


@pytest.fixture
def short_data_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search of training data for bad numbers ends after a batch, instead of after 5 seconds."""
    from official_lite.data import input_errors

    seconds = itertools.count(step=100)
    clock = types.SimpleNamespace(monotonic=lambda: float(next(seconds)))
    monkeypatch.setattr(input_errors, "time", clock)
