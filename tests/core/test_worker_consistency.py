"""Tests that workers with different configs, code or data raise before training."""

import contextlib
import json
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import portpicker
import pytest
import tensorflow as tf

from experiments.vision.digits import configs
from official_lite.common import errors
from official_lite.core import config_definitions as cfg
from official_lite.core import exp_factory, preflight, task_factory
from tests import commands

# Unlike the digits config, this config names input files. Workers are compared before any file is
# read.
EXPERIMENT = """
from experiments.vision.digits import configs
from official_lite.core import exp_factory


@exp_factory.register_config_factory("test/files")
def files():
    params = configs.digits_mlp()
    params.task = MyConfig(train_data=params.task.train_data)
    params.task.train_data.input_path = "*.tfrecord"
    return params


class MyConfig(configs.DigitsConfig):
    pass
"""


def _change_nothing(host: pathlib.Path) -> None:
    pass


def _change_code(host: pathlib.Path) -> None:
    (host / "mine.py").write_text(f"{EXPERIMENT}\n# Only here.\n")


def _change_data(host: pathlib.Path) -> None:
    (host / "part-1.tfrecord").write_bytes(b"x" * 2000)


@pytest.mark.parametrize(
    ("part", "change", "option", "has"),
    [
        (
            "config",
            _change_nothing,
            "task.train_data.cycle_length=INDEX",
            "worker 0 has `task.train_data.cycle_length: 0`, "
            "worker 1 has `task.train_data.cycle_length: 1`",
        ),
        ("code", _change_code, "runtime.seed=3", "worker 1 has `mine.py "),
        (
            "training data",
            _change_data,
            "runtime.seed=3",
            "worker 0 has `./part-1.tfrecord, 1,000 bytes`, "
            "worker 1 has `./part-1.tfrecord, 2,000 bytes`",
        ),
    ],
)
@pytest.mark.slow
def test_workers_with_different_config_code_or_data_exit_and_name_the_difference(
    tmp_path: pathlib.Path,
    part: str,
    change: Callable[[pathlib.Path], None],
    option: str,
    has: str,
) -> None:
    addresses = [f"127.0.0.1:{portpicker.pick_unused_port()}" for _ in range(2)]
    workers = []
    for index in range(2):
        host = tmp_path / f"host_{index}"
        host.mkdir()
        (host / "mine.py").write_text(EXPERIMENT)
        for number in range(3):
            (host / f"part-{number}.tfrecord").write_bytes(b"x" * 1000)
        if index == 1:
            change(host)
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        command = [
            *(commands.ROOT / "train.py", "--experiment=test/files", "--mode=train"),
            *("--import=mine.py", f"--model_dir={tmp_path}/run"),
            "--set=runtime.distribution_strategy=multi_worker_mirrored",
            f"--set={option.replace('INDEX', str(index))}",
        ]
        environment = {"TF_CONFIG": json.dumps(config)}
        workers.append(commands.Command(command, env=environment, cwd=host))
    assert [worker.wait() for worker in workers] == [2, 2], workers[0].stderr
    for worker in workers:
        end = worker.stderr.splitlines()[-1]
        assert f"The {part} of worker 0 and of worker 1 differ: " in end
        assert has in end


def test_single_process_skips_the_worker_consistency_check() -> None:
    params = cfg.ExperimentConfig()
    preflight.require_agreement(params, tf.distribute.OneDeviceStrategy("CPU:0"))


class _TwoWorkers(tf.distribute.MultiWorkerMirroredStrategy):
    """The strategy of a worker with two replicas; it replays the messages of a second worker."""

    def __init__(self, others: Sequence[np.ndarray] = ()) -> None:
        self._others = iter(others)
        self.sent: list[np.ndarray] = []

    def run(self, function: Callable[[], Any]) -> Any:
        return function()

    def gather(self, value: tf.Tensor, axis: int) -> tf.Tensor:
        own = value.numpy()
        self.sent.append(own)
        other = next(self._others, own)
        return tf.concat([own, own, other, other], axis)


def _agree(first: cfg.ExperimentConfig, second: cfg.ExperimentConfig) -> None:
    """Compare two configs as two workers do, but run the workers one after the other."""
    other = _TwoWorkers()
    preflight.require_agreement(second, other)
    preflight.require_agreement(first, _TwoWorkers(other.sent))


@pytest.fixture
def two_workers(monkeypatch) -> None:
    cluster = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))


@pytest.mark.usefixtures("two_workers")
def test_workers_that_differ_only_in_their_task_index_pass_the_consistency_check(
    experiment,
) -> None:
    hosts = "a:1,b:2"
    _agree(*(experiment(runtime={"task_index": i, "worker_hosts": hosts}) for i in range(2)))


@pytest.mark.usefixtures("two_workers")
def test_workers_with_several_replicas_and_different_seeds_raise(experiment) -> None:
    with pytest.raises(errors.ConfigValueError, match="The seed of worker 0"):
        _agree(*(experiment(runtime={"seed": seed}) for seed in (1, 2)))


@pytest.mark.usefixtures("two_workers")
@pytest.mark.parametrize("part", ["train_data", "validation_data"])
def test_workers_compare_training_data_files_but_not_validation_data_files(
    experiment, tmp_path, part
) -> None:
    path = tmp_path / "records"
    params = experiment(task={part: {"input_path": str(path)}})
    other = _TwoWorkers()
    path.write_bytes(b"x")
    preflight.require_agreement(params, other)
    path.write_bytes(b"xx")
    differs = pytest.raises(errors.ConfigValueError, match="The training data of worker 0")
    with differs if part == "train_data" else contextlib.nullcontext():
        preflight.require_agreement(params, _TwoWorkers(other.sent))


def test_code_comparison_between_workers_covers_framework_and_experiment_files() -> None:
    lines = preflight.list_code(configs.digits_mlp())
    names = [line.partition(" ")[0] for line in lines]
    assert names == sorted(names)
    assert {"official_lite/core/preflight.py", "experiments/vision/digits/task.py"} <= set(names)
    assert lines == preflight.list_code(exp_factory.get_exp_config("vision/digits_cnn"))


def test_checksum_of_a_code_file_changes_with_the_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.py"
    file.write_text("SHIFT = 1\n")
    task = type("MyTask", (), {"__module__": "mine"})
    params = cfg.ExperimentConfig(task=type("MyConfig", (cfg.TaskConfig,), {})())
    monkeypatch.setitem(sys.modules, "mine", type(sys)("mine"))
    sys.modules["mine"].__file__ = str(file)
    task_factory.register_task_cls(type(params.task))(task)
    before = preflight.list_code(params)
    file.write_text("SHIFT = 2\n")
    changed = set(preflight.list_code(params)) ^ set(before)
    assert [line.partition(" ")[0] for line in sorted(changed)] == ["mine.py", "mine.py"]


def test_listing_code_files_accepts_dangling_symlinks_and_unreadable_files(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".#task.py").symlink_to("me@host.1")  # Emacs locks `task.py` this way.
    (tmp_path / "lost.py").symlink_to("/proc/self/mem")  # Its first byte can't be read.
    package = type(sys)("my_package")
    package.__path__ = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, "my_package", package)
    task = type("MyTask", (), {"__module__": "my_package"})
    params = cfg.ExperimentConfig(task=type("MyConfig", (cfg.TaskConfig,), {})())
    task_factory.register_task_cls(type(params.task))(task)
    lines = preflight.list_code(params)
    assert [line for line in lines if line.startswith("my_package")] == [
        "my_package/lost.py unreadable"
    ]
