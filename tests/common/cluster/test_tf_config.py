import json

import pytest

from official_lite.common import errors
from official_lite.common.cluster import tf_config

TWO_WORKERS = {"worker": ["a:1", "b:1"]}


@pytest.fixture(autouse=True)
def no_tf_config(monkeypatch):
    # Set first, so that what a test writes is undone afterwards.
    monkeypatch.setenv("TF_CONFIG", "")


def make_tf_config(jobs=TWO_WORKERS, task=("worker", 0)):
    return json.dumps({"cluster": jobs, "task": {"type": task[0], "index": task[1]}})


def test_the_cluster_is_read(monkeypatch):
    jobs = {"chief": ["c:1"], "worker": ["a:1", "b:1"], "ps": ["p:1"]}
    monkeypatch.setenv("TF_CONFIG", make_tf_config(jobs, ("worker", 1)))
    config = tf_config.read_tf_config()
    assert (config.task_type, config.task_index, config.num_workers) == ("worker", 1, 3)
    assert config.jobs["ps"] == ("p:1",)


@pytest.mark.parametrize("text", ["", "  ", "{}"])
def test_an_empty_variable_is_no_cluster(monkeypatch, text):
    monkeypatch.setenv("TF_CONFIG", text)
    assert tf_config.read_tf_config() is None
    assert tf_config.configure_cluster() == 1


def test_an_evaluator_need_not_be_in_the_cluster(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", make_tf_config(task=("evaluator", 0)))
    assert tf_config.read_tf_config().task_type == "evaluator"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{'cluster'", "not JSON"),
        ("[1]", "no `cluster`"),
        (json.dumps({"cluster": TWO_WORKERS}), "no `task`"),
        (json.dumps({"cluster": TWO_WORKERS, "task": {"type": "worker"}}), "no `task`"),
        (
            make_tf_config(task=("chief", 0)),
            r"`task.type` is 'chief', but the cluster has \['worker'\]",
        ),
        (make_tf_config(task=("worker", 2)), "index` must be from 0 to 1 for `worker`; got 2"),
        (make_tf_config(task=("worker", "0")), "whole number"),
        (make_tf_config({"worker": ["a:1", "a:1"]}), "a:1.* is repeated"),
        (make_tf_config({"worker": ["a"]}), "list of `host:port`"),
        (make_tf_config({"wroker": ["a:1"]}), "Did you mean `worker`"),
    ],
)
def test_a_wrong_cluster_is_refused_before_anything_waits_for_it(monkeypatch, text, message):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(errors.ConfigValueError, match=message):
        tf_config.read_tf_config()


def test_worker_hosts_become_a_cluster():
    assert tf_config.configure_cluster("a:1, b:1", task_index=1) == 2
    config = tf_config.read_tf_config()
    assert (config.jobs, config.task_index) == ({"worker": ("a:1", "b:1")}, 1)


def test_one_worker_needs_no_index():
    assert tf_config.configure_cluster("a:1") == 1
    assert tf_config.read_tf_config().task_index == 0


def test_a_cluster_that_is_set_stays(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", make_tf_config())
    assert tf_config.configure_cluster("x:1,y:1,z:1", task_index=0) == 2


@pytest.mark.parametrize("task_index", [-1, 2])
def test_a_worker_must_know_its_place(task_index):
    with pytest.raises(errors.ConfigValueError, match="index"):
        tf_config.configure_cluster(["a:1", "b:1"], task_index=task_index)


def test_processes_are_named_with_their_addresses(monkeypatch):
    jobs = {"worker": ["a:1", "b:1"], "chief": ["c:1"], "ps": ["p:1"]}
    monkeypatch.setenv("TF_CONFIG", make_tf_config(jobs, ("worker", 1)))
    config = tf_config.read_tf_config()
    assert config.name == "worker 1"
    workers = config.members("chief", "worker")
    assert workers == {"chief": "c:1", "worker 0": "a:1", "worker 1": "b:1"}


def test_an_address_is_split():
    assert tf_config.split_address("host.example:2222") == ("host.example", 2222)
    assert tf_config.split_address("[::1]:2222") == ("::1", 2222)


def test_a_slurm_step_is_the_cluster_where_nothing_else_says_one(monkeypatch):
    step = {
        "SLURM_PROCID": "1",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "n[1-2]",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    }
    for name, value in step.items():
        monkeypatch.setenv(name, value)
    # Only strategies of several processes look for it.
    assert tf_config.configure_cluster() == 1
    found = tf_config.find_cluster()
    assert (found.num_workers, found.name) == (2, "worker 1")
    assert tf_config.find_cluster("x:1", task_index=0) == found
    monkeypatch.setenv("TF_CONFIG", "")
    assert tf_config.find_cluster("x:1", task_index=0).num_workers == 1
