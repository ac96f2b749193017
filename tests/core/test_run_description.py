import tensorflow as tf

from official_lite.core import checkpoint_state


def test_what_a_checkpoint_says_of_its_run(experiment, make_trainer):
    configs = [experiment(), experiment(trainer={"train_steps": 16})]
    current = [configs[0]]
    describe = checkpoint_state.RunDescription(
        make_trainer(configs[0]), tf.distribute.get_strategy(), lambda: current[0]
    )
    first = describe()
    assert first["optimizer"]["class"].startswith("SGD")
    assert (first["global_batch_size"], first["num_replicas"]) == (8, 1)
    assert first["versions"]["tensorflow"] == tf.__version__
    assert describe() is first
    current[0] = configs[1]
    assert describe()["config_sha256"] != first["config_sha256"]
