import json
import pathlib
from collections.abc import Callable

import portpicker
import pytest
import tensorflow as tf

from official_lite.core import config_definitions as cfg
from official_lite.run import worker_consistency
from tests import commands

# Reads files, as the digits by themselves don't. Nobody gets so far: workers are compared before.
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
        ("seed", _change_nothing, "runtime.seed=INDEX", "worker 1 has `runtime.seed: 1`"),
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
def test_50_workers_that_differ_end_with_what_each_of_them_has(
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


def test_a_single_process_has_nothing_to_agree_on() -> None:
    params = cfg.ExperimentConfig()
    worker_consistency.require_agreement(params, tf.distribute.OneDeviceStrategy("CPU:0"))
