import json
import os
import subprocess
import sys

import pytest
import tensorflow as tf

from official_lite.common import cluster, distribute_utils, errors

get_strategy = distribute_utils.get_distribution_strategy


def test_distribution_strategy_off_returns_the_current_tf_distribute_strategy():
    assert get_strategy("OFF") is tf.distribute.get_strategy()
    assert get_strategy("off", num_gpus=None) is tf.distribute.get_strategy()


@pytest.mark.parametrize("name", ["mirrored", "one_device", "Mirrored"])
def test_strategy_with_num_gpus_zero_has_one_replica_on_the_cpu(name):
    assert get_strategy(name, num_gpus=0).extended.worker_devices[0].endswith("CPU:0")
    assert get_strategy(name, num_gpus=0).num_replicas_in_sync == 1


def test_mirrored_strategy_for_all_gpus_has_one_replica_if_there_is_no_gpu():
    assert get_strategy("mirrored", num_gpus=-1).num_replicas_in_sync == 1


@pytest.mark.parametrize("num_gpus", [-1, None])
def test_mirrored_strategy_uses_all_gpus_if_num_gpus_is_minus_one_or_none(num_gpus, monkeypatch):
    monkeypatch.setattr(
        tf.config, "list_logical_devices", lambda kind: [f"{kind}:{i}" for i in "01"]
    )
    monkeypatch.setattr(tf.distribute, "MirroredStrategy", lambda devices, **_: devices)
    assert get_strategy("mirrored", num_gpus=num_gpus) == ["device:GPU:0", "device:GPU:1"]


def test_mirrored_strategy_on_two_logical_cpus_has_two_replicas():
    assert get_strategy("mirrored", devices=["cpu:0", "/device:CPU:1"]).num_replicas_in_sync == 2


def test_second_mirrored_strategy_on_the_same_cpus_can_all_reduce_tensors_of_another_shape():
    for size in (2, 3):
        strategy = get_strategy("mirrored", devices=["CPU:0", "CPU:1"])

        def replica_sum(size=size):
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.ones([size]))

        total = tf.function(strategy.run)(replica_sum)
        assert strategy.experimental_local_results(total)[0].numpy().tolist() == [2.0] * size


@pytest.mark.slow
def test_mirrored_strategy_in_a_new_process_creates_the_second_logical_cpu():
    code = (
        "from official_lite.common import distribute_utils as d; "
        "s = d.get_distribution_strategy('mirrored', devices=['CPU:0', 'CPU:1']); "
        "assert s.num_replicas_in_sync == 2"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["chief", "worker"])
def test_coordination_service_has_the_settings_of_tensorflow_except_for_the_registration_timeout(
    first: str,
):
    """A new release of TensorFlow may configure the service otherwise."""
    code = """if True:
        import tensorflow as tf
        from tensorflow.python.eager import context
        from official_lite.common import distribute_utils, tf_config

        def stop(*args):
            raise StopIteration

        def configured_by(function, *args):
            context.context()._coordination_service_config = None
            try:
                function(*args)
            except StopIteration:
                pass
            return context.context().coordination_service

        context.Context.enable_collective_ops = stop
        expected = configured_by(tf.distribute.MultiWorkerMirroredStrategy)
        ours = configured_by(distribute_utils._limit_time_to_connect, tf_config.find_cluster())
        assert ours.cluster_register_timeout_in_ms == 1_000_000
        ours.ClearField("cluster_register_timeout_in_ms")
        ours.ClearField("cluster_register_with_barrier")
        assert expected.coordinated_job_list
        assert ours == expected, (ours, expected)
        """
    jobs = {"worker": ["10.0.0.2:1", "10.0.0.3:1"]}
    if first == "chief":
        jobs = {"chief": ["10.0.0.1:1"], **jobs}
    config = {"cluster": jobs, "task": {"type": "worker", "index": 1}}
    environment = {
        **os.environ,
        "TF_CONFIG": json.dumps(config),
        cluster.TIMEOUT_VARIABLE: "1000",
    }
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"distribution_strategy": False}, "put quotes around it"),
        ({"distribution_strategy": "mirorred"}, "Did you mean `mirrored`"),
        ({"num_gpus": -2}, "cannot be less than -1"),
        ({"num_gpus": 5}, "`num_gpus` is 5, but TensorFlow finds 0"),
        ({"distribution_strategy": "off", "num_gpus": 2}, "`mirrored` to use all GPUs"),
        ({"distribution_strategy": "one_device", "num_gpus": 2}, "more than one device"),
        ({"all_reduce_alg": "ring"}, r"valid values for all_reduce_alg are \['hier.*got 'ring'"),
        ({"distribution_strategy": "tpu"}, "--set=runtime.tpu=local"),
        ({"distribution_strategy": "off", "devices": ["CPU:0"]}, "`devices` can't be combined"),
        ({"devices": ["CPU:0", "CPU:7"]}, "TensorFlow has .*CPU:1"),
        ({"devices": ["CPU:0", "CPU:0"]}, "different devices"),
    ],
)
def test_invalid_strategy_arguments_raise(kwargs, message):
    with pytest.raises(errors.ConfigValueError, match=message):
        get_strategy(**kwargs)


def test_parameter_server_strategy_without_a_cluster_raises(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "")
    with pytest.raises(errors.ConfigValueError, match="needs a cluster in TF_CONFIG"):
        get_strategy("parameter_server")


def test_invalid_tf_config_raises_before_workers_wait_for_each_other(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1"]}}')
    with pytest.raises(errors.ConfigValueError, match="no `task`"):
        get_strategy("multi_worker_mirrored")


def test_unknown_strategy_argument_raises_and_suggests_the_nearest_name():
    with pytest.raises(errors.ConfigTypeError, match=r"'num_gpu'\. Did you mean `num_gpus`"):
        get_strategy("off", num_gpu=1)


def test_strategy_arguments_of_the_model_garden_are_accepted():
    assert get_strategy("off", num_cores_per_replica=2, default_shard_dim=-1)


def test_get_strategy_scope_of_none_has_no_effect():
    strategy = get_strategy("one_device")
    with distribute_utils.get_strategy_scope(strategy):
        assert tf.distribute.get_strategy() is strategy
    with distribute_utils.get_strategy_scope(None):
        assert tf.distribute.get_strategy() is not strategy


def test_distribute_utils_has_configure_cluster_as_in_the_model_garden(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "")
    assert distribute_utils.configure_cluster("a:1, b:1", task_index=1) == 2
