import json

import pytest
import tensorflow as tf

from official_lite.core import config_definitions as cfg
from official_lite.pipeline import stages
from official_lite.pipeline.stages import Engine

HOSTS = ["localhost:1", "localhost:2"]


def _cluster(monkeypatch, task: str, index: int, **jobs) -> None:
    config = {"cluster": jobs, "task": {"type": task, "index": index}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))


def test_engine_follows_the_number_of_replicas(two_replicas) -> None:
    assert stages.engine_of(tf.distribute.get_strategy()) is Engine.SINGLE
    assert stages.engine_of(tf.distribute.OneDeviceStrategy("CPU:0")) is Engine.SINGLE
    assert stages.engine_of(two_replicas) is Engine.LOCAL_CLUSTER


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"distribution_strategy": "off", "num_gpus": 0}, Engine.SINGLE),
        ({"distribution_strategy": "one_device"}, Engine.SINGLE),
        ({"distribution_strategy": "mirrored"}, Engine.SINGLE),
        ({"distribution_strategy": "mirrored", "num_gpus": -1}, Engine.SINGLE),
        ({"distribution_strategy": "mirrored", "num_gpus": 2}, Engine.LOCAL_CLUSTER),
        (
            {"distribution_strategy": "Mirrored", "devices": ["CPU:0", "CPU:1"]},
            Engine.LOCAL_CLUSTER,
        ),
        ({"distribution_strategy": "tpu", "tpu": "local"}, Engine.LOCAL_CLUSTER),
        ({"distribution_strategy": "multi_worker_mirrored"}, Engine.CLUSTER),
    ],
)
def test_config_says_which_engine_there_will_be(monkeypatch, fields, expected) -> None:
    _cluster(monkeypatch, "worker", 0, worker=HOSTS)
    assert stages.expected_engine(cfg.RuntimeConfig(**fields)) is expected


def test_workers_may_be_named_in_the_config(monkeypatch) -> None:
    monkeypatch.setenv("TF_CONFIG", "")
    config = cfg.RuntimeConfig(
        distribution_strategy="multi_worker_mirrored", worker_hosts=",".join(HOSTS), task_index=1
    )
    assert stages.expected_engine(config) is Engine.CLUSTER
    assert not stages.is_chief(config)


@pytest.mark.parametrize(
    ("task", "index", "jobs", "expected"),
    [
        ("worker", 0, {"worker": HOSTS}, True),
        ("worker", 1, {"worker": HOSTS}, False),
        ("chief", 0, {"chief": HOSTS[:1], "worker": HOSTS[1:]}, True),
        ("worker", 0, {"chief": HOSTS[:1], "worker": HOSTS[1:]}, False),
        ("evaluator", 0, {"worker": HOSTS}, True),
    ],
)
def test_one_process_of_a_cluster_writes(monkeypatch, task, index, jobs, expected) -> None:
    _cluster(monkeypatch, task, index, **jobs)
    multi = cfg.RuntimeConfig(distribution_strategy="multi_worker_mirrored")
    assert stages.is_chief(multi) is expected
    # A strategy of one process never looks at the cluster.
    assert stages.is_chief(cfg.RuntimeConfig(distribution_strategy="mirrored"))
