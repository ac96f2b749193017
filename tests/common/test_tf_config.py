import json

import pytest

from official_lite.common import errors, tf_config

TWO_WORKERS = {"worker": ["a:1", "b:1"]}


@pytest.fixture(autouse=True)
def no_tf_config(monkeypatch):
    # Set the variable here, so that `monkeypatch` also undoes what a test writes to it.
    monkeypatch.setenv("TF_CONFIG", "")


def make_tf_config(jobs=TWO_WORKERS, task=("worker", 0)):
    return json.dumps({"cluster": jobs, "task": {"type": task[0], "index": task[1]}})


def test_cluster_is_read_from_tf_config(monkeypatch):
    jobs = {"chief": ["c:1"], "worker": ["a:1", "b:1"], "ps": ["p:1"]}
    monkeypatch.setenv("TF_CONFIG", make_tf_config(jobs, ("worker", 1)))
    config = tf_config.read_tf_config()
    assert (config.task_type, config.task_index, config.num_workers) == ("worker", 1, 3)
    assert config.jobs["ps"] == ("p:1",)


@pytest.mark.parametrize("text", ["", "  ", "{}"])
def test_empty_tf_config_describes_no_cluster(monkeypatch, text):
    monkeypatch.setenv("TF_CONFIG", text)
    assert tf_config.read_tf_config() is None
    assert tf_config.configure_cluster() == 1


def test_evaluator_need_not_be_listed_in_the_cluster_of_tf_config(monkeypatch):
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
def test_invalid_tf_config_raises_with_the_reason(monkeypatch, text, message):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(errors.ConfigValueError, match=message):
        tf_config.read_tf_config()


def test_worker_hosts_are_written_to_tf_config():
    assert tf_config.configure_cluster("a:1, b:1", task_index=1) == 2
    config = tf_config.read_tf_config()
    assert (config.jobs, config.task_index) == ({"worker": ("a:1", "b:1")}, 1)


def test_cluster_with_a_single_worker_needs_no_task_index():
    assert tf_config.configure_cluster("a:1") == 1
    assert tf_config.read_tf_config().task_index == 0


def test_tf_config_overrides_worker_hosts(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", make_tf_config())
    assert tf_config.configure_cluster("x:1,y:1,z:1", task_index=0) == 2


@pytest.mark.parametrize("task_index", [-1, 2])
def test_task_index_outside_the_list_of_worker_hosts_raises(task_index):
    with pytest.raises(errors.ConfigValueError, match="index"):
        tf_config.configure_cluster(["a:1", "b:1"], task_index=task_index)


def test_worker_host_without_a_port_raises_an_error_that_names_worker_hosts():
    with pytest.raises(errors.ConfigValueError, match=r"`worker_hosts`.*`host:port`.*'b'"):
        tf_config.configure_cluster(["a:1", "b"], task_index=0)


def test_cluster_members_are_named_and_mapped_to_their_addresses(monkeypatch):
    jobs = {"worker": ["a:1", "b:1"], "chief": ["c:1"], "ps": ["p:1"]}
    monkeypatch.setenv("TF_CONFIG", make_tf_config(jobs, ("worker", 1)))
    config = tf_config.read_tf_config()
    assert config.name == "worker 1"
    workers = config.members("chief", "worker")
    assert workers == {"chief": "c:1", "worker 0": "a:1", "worker 1": "b:1"}


def test_address_is_split_into_host_and_port():
    assert tf_config.split_address("host.example:2222") == ("host.example", 2222)
    assert tf_config.split_address("[::1]:2222") == ("::1", 2222)


def test_tf_config_and_worker_hosts_take_precedence_over_the_slurm_step(monkeypatch):
    step = {
        "SLURM_PROCID": "1",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "n[1-2]",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    }
    for name, value in step.items():
        monkeypatch.setenv(name, value)
    # Only multi-process strategies look for a Slurm step.
    assert tf_config.configure_cluster() == 1
    found = tf_config.find_cluster()
    assert (found.num_workers, found.name) == (2, "worker 1")
    assert tf_config.find_cluster("x:1", task_index=0) == found
    monkeypatch.setenv("TF_CONFIG", "")
    assert tf_config.find_cluster("x:1", task_index=0).num_workers == 1


STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_PROCID": "2",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NODELIST": "n[9-10]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
}


def test_tasks_of_a_slurm_step_are_workers_in_order_of_their_ranks():
    config = tf_config.read_slurm_step(STEP)
    hosts = [address.partition(":")[0] for address in config["cluster"]["worker"]]
    assert hosts == ["n9", "n9", "n10"]
    assert config["task"] == {"type": "worker", "index": 2}


def test_slurm_tasks_and_jobs_on_a_node_have_different_ports():
    workers = tf_config.read_slurm_step(STEP)["cluster"]["worker"]
    next_job = tf_config.read_slurm_step({**STEP, "SLURM_JOB_ID": "4712"})["cluster"]["worker"]
    assert len(set(workers + next_job)) == 6


@pytest.mark.parametrize(
    ("node_list", "hosts"),
    [
        ("login", ["login"]),
        ("n[08-10,12],m3", ["n08", "n09", "n10", "n12", "m3"]),
        ("r[1-2]n[1-2].cluster", ["r1n1.cluster", "r1n2.cluster", "r2n1.cluster", "r2n2.cluster"]),
    ],
)
def test_slurm_node_list_is_expanded_to_host_names(node_list, hosts):
    assert tf_config.expand_hosts(node_list) == hosts


def test_repeated_slurm_task_counts_are_expanded():
    step = {**STEP, "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}
    assert len(tf_config.read_slurm_step(step)["cluster"]["worker"]) == 4


def test_slurm_step_with_a_single_task_describes_no_cluster():
    assert tf_config.read_slurm_step({**STEP, "SLURM_STEP_NUM_TASKS": "1"}) is None
    assert tf_config.read_slurm_step({"SLURM_JOB_ID": "4711", "SLURM_PROCID": "0"}) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"SLURM_NODEID": "0", "SLURM_LOCALID": "1"}, "--distribution=block"),
        ({"SLURM_STEP_NODELIST": "n9"}, "Can't interpret the Slurm step with 3 tasks"),
        ({"SLURM_STEP_NUM_TASKS": "5"}, "Can't interpret the Slurm step with 5 tasks"),
    ],
)
def test_inconsistent_slurm_step_raises(changes, message):
    with pytest.raises(errors.ConfigValueError, match=message):
        tf_config.read_slurm_step({**STEP, **changes})
