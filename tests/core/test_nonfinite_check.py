import math
import types

import keras
import tensorflow as tf

from official_lite.core import actions as recovery
from official_lite.modeling import distributed_gradients, embedding_lookups


def test_names_the_variables_that_are_not_finite(experiment, make_trainer) -> None:
    adam = {"optimizer": {"type": "adam"}}
    trainer = make_trainer(experiment(trainer={"optimizer_config": adam}))
    trainer.train(tf.constant(1))
    state = recovery.NonfiniteCheck(trainer)
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
        state = recovery.NonfiniteCheck(trainer)
        assert state.bad_variables() == []
        slot = next(v for v in trainer.optimizer.variables if "momentum" in v.path)
        slot.value.values[1].assign(tf.fill(slot.shape, math.nan))
        assert state.bad_variables() == [slot.path]


def test_large_tables_are_looked_at_less_often_until_something_is_bad(monkeypatch) -> None:
    monkeypatch.setattr(embedding_lookups, "is_large", lambda variable: True)
    monkeypatch.setattr(recovery, "_NUMBERS_A_STEP", 2)
    monkeypatch.setattr(recovery, "_ROWS_AT_ONCE", 3)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Embedding(10, 2)])
    optimizer = distributed_gradients.make_distributed(keras.optimizers.Adagrad())
    optimizer.build(model.trainable_variables)
    step = tf.Variable(100, dtype=tf.int64)
    state = recovery.NonfiniteCheck(
        types.SimpleNamespace(model=model, optimizer=optimizer, global_step=step)
    )
    assert state.bad_variables() == []
    table = model.trainable_variables[0]
    table.assign(tf.tensor_scatter_nd_update(table.value, [[9, 1]], [math.nan]))
    # The table and its accumulator have 40 numbers, and each step bears two.
    for at, expected in ((100, []), (119, []), (120, [table.path]), (120, [table.path])):
        step.assign(at)
        assert state.bad_variables() == expected
    table.assign(tf.zeros([10, 2]))
    assert state.bad_variables() == []
