import math

import tensorflow as tf

from official_lite.core import finite_state


def test_names_the_variables_that_are_not_finite(experiment, make_trainer) -> None:
    adam = {"optimizer": {"type": "adam"}}
    trainer = make_trainer(experiment(trainer={"optimizer_config": adam}))
    trainer.train(tf.constant(1))
    state = finite_state.FiniteState(trainer)
    assert state.bad_variables() == []
    trainer.model.dense.bias.assign([math.inf])
    (bad,) = state.bad_variables()
    assert bad.endswith("bias")
    trainer.model.dense.bias.assign([0.0])
    assert state.bad_variables() == []


def test_looks_at_the_optimizer_and_at_every_replica(
    experiment, make_trainer, two_replicas
) -> None:
    with two_replicas.scope():
        trainer = make_trainer(
            experiment(trainer={"optimizer_config": {"optimizer": {"type": "adam"}}})
        )
        trainer.train(tf.constant(1))
        state = finite_state.FiniteState(trainer)
        assert state.bad_variables() == []
        slot = next(v for v in trainer.optimizer.variables if "momentum" in v.path)
        slot.value.values[1].assign(tf.fill(slot.shape, math.nan))
        assert state.bad_variables() == [slot.path]
