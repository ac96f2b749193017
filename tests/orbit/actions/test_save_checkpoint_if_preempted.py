import tensorflow as tf

from official_lite.orbit import actions


class Handler:
    """A replacement for TensorFlow's handler, because a test can't cause a preemption."""

    def __init__(self, cluster_resolver, manager, termination_config=None):
        self.manager, self.termination_config = manager, termination_config

    def save_checkpoint_if_preempted(self, **kwargs):
        self.manager.append(kwargs)


def test_preemption_action_passes_the_step_variable_to_the_handler(monkeypatch):
    monkeypatch.setattr(tf.distribute.experimental, "PreemptionCheckpointHandler", Handler)
    saves, step = [], tf.Variable(3)
    action = actions.SaveCheckpointIfPreempted("resolver", saves, checkpoint_number=step)
    action({})
    assert len(saves) == 1
    assert saves[0]["checkpoint_number"] is step
    assert saves[0]["check_interval"] is False


def test_keep_running_after_save_does_not_exit_the_process(monkeypatch):
    monkeypatch.setattr(tf.distribute.experimental, "PreemptionCheckpointHandler", Handler)
    configs = []
    monkeypatch.setattr(
        tf.distribute.experimental, "TerminationConfig", lambda exit_fn: configs.append(exit_fn)
    )
    actions.SaveCheckpointIfPreempted("resolver", [], keep_running_after_save=True)
    assert configs[0]() is None
