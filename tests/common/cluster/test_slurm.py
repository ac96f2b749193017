import pytest

from official_lite.common import errors
from official_lite.common.cluster import slurm

STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_PROCID": "2",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NODELIST": "n[9-10]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
}


def test_a_step_is_a_cluster_of_workers_in_the_order_of_their_ranks():
    config = slurm.read_step(STEP)
    hosts = [address.partition(":")[0] for address in config["cluster"]["worker"]]
    assert hosts == ["n9", "n9", "n10"]
    assert config["task"] == {"type": "worker", "index": 2}


def test_tasks_of_a_node_and_jobs_of_a_node_have_ports_of_their_own():
    workers = slurm.read_step(STEP)["cluster"]["worker"]
    next_job = slurm.read_step({**STEP, "SLURM_JOB_ID": "4712"})["cluster"]["worker"]
    assert len(set(workers + next_job)) == 6


@pytest.mark.parametrize(
    ("node_list", "hosts"),
    [
        ("login", ["login"]),
        ("n[08-10,12],m3", ["n08", "n09", "n10", "n12", "m3"]),
        ("r[1-2]n[1-2].cluster", ["r1n1.cluster", "r1n2.cluster", "r2n1.cluster", "r2n2.cluster"]),
    ],
)
def test_hosts_are_expanded(node_list, hosts):
    assert slurm.expand_hosts(node_list) == hosts


def test_repeated_sizes_are_expanded():
    step = {**STEP, "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}
    assert len(slurm.read_step(step)["cluster"]["worker"]) == 4


def test_a_single_task_and_a_batch_script_are_no_cluster():
    assert slurm.read_step({**STEP, "SLURM_STEP_NUM_TASKS": "1"}) is None
    assert slurm.read_step({"SLURM_JOB_ID": "4711", "SLURM_PROCID": "0"}) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"SLURM_NODEID": "0", "SLURM_LOCALID": "1"}, "--distribution=block"),
        ({"SLURM_STEP_NODELIST": "n9"}, "Can't interpret the Slurm step with 3 tasks"),
        ({"SLURM_STEP_NUM_TASKS": "5"}, "Can't interpret the Slurm step with 5 tasks"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(errors.ConfigValueError, match=message):
        slurm.read_step({**STEP, **changes})
