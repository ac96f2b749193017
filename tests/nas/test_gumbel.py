import pytest
import tensorflow as tf


def test_temperature_falls_in_a_line_to_the_last_step(experiment, make_trainer) -> None:
    trainer = make_trainer(experiment("gumbel", trainer={"train_steps": 10}))
    steps = [0, 5, 10, 20]
    temperatures = [float(trainer.temperature(tf.constant(s, tf.int64))) for s in steps]
    assert temperatures == pytest.approx([5.0, 2.75, 0.5, 0.5])


@pytest.mark.parametrize("hard", [False, True])
def test_both_kinds_learn(hard, experiment, make_trainer) -> None:
    params = experiment("gumbel", trainer={"one_shot": {"gumbel": {"hard": hard}}})
    trainer = make_trainer(params)
    before = [alpha.numpy().tolist() for alpha in trainer.alphas]
    trainer.train(tf.constant(4))
    assert [alpha.numpy().tolist() for alpha in trainer.alphas] != before
