import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.nas import loss_probe
from tests import rounding

# Of three layers with sums over four inputs, and of six examples.
ROUNDINGS = 3 * 4 * 6


def _batch():
    generator = np.random.default_rng(0)
    return (
        tf.constant(generator.normal(size=(6, 4)).astype(np.float32)),
        tf.constant(generator.normal(size=(6, 1)).astype(np.float32)),
    )


def test_probe_changes_nothing(experiment, make_trainer) -> None:
    trainer = make_trainer(experiment(task={"batch_norm": True, "dropout_rate": 0.5}))
    before = [v.numpy() for v in trainer.model.variables]
    compiled = tf.function(lambda batch: trainer.strategy.run(trainer.loss, args=(batch,)))
    assert float(compiled(_batch())) > 0.0
    for variable, value in zip(trainer.model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_loss_has_the_penalties_of_layers(experiment, make_trainer) -> None:
    plain, decayed = (make_trainer(experiment(task={"l2": l2})) for l2 in (0.0, 0.5))
    decayed.model.set_weights(plain.model.get_weights())
    for (_, one), (_, other) in zip(plain.resolved, decayed.resolved, strict=True):
        other.alpha.assign(one.alpha)
    kernels = [w for w in decayed.model.weights if w.regularizer]
    wanted = 0.5 * sum(float(np.sum(np.square(k.numpy()))) for k in kernels)
    assert wanted > 0.0
    losses = [float(t.strategy.run(t.loss, args=(_batch(),))) for t in (plain, decayed)]
    rounding.assert_close(losses[1] - losses[0], wanted, roundings=ROUNDINGS, scale=losses[1])


def test_values_stand_in_for_weights(experiment, make_trainer) -> None:
    trainer = make_trainer(experiment(task={"l2": 0.1}))
    weights = trainer.model.trainable_variables
    values = [tf.convert_to_tensor(w) * 2.0 for w in weights]
    there = float(trainer.strategy.run(trainer.loss, args=(_batch(), weights, values)))
    for weight, value in zip(weights, values, strict=True):
        weight.assign(value)
    here = trainer.strategy.run(trainer.loss, args=(_batch(),))
    rounding.assert_close(there, here, roundings=ROUNDINGS)


def test_step_without_its_loss_is_refused(experiment, toy_task) -> None:
    class Silent(toy_task):
        def train_step(self, inputs, model, optimizer, metrics=None):
            return {"other": tf.constant(0.0)}

    task = Silent(experiment().task)
    probe = loss_probe.LossProbe(task, task.build_model(), None)
    with pytest.raises(errors.ConfigValueError, match=r"returns \['other'\]; expected also"):
        probe(_batch())
