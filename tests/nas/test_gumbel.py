import pytest
import tensorflow as tf

from official_lite.core import trainer_factory
from official_lite.nas import gumbel


@trainer_factory.register_trainer_cls("test/branching_gumbel")
class Branching(gumbel.GumbelTrainer):
    """Parts that may be replaced have an `if` on tensors, which AutoGraph has to convert."""

    def is_arch_step_due(self, step):
        if step < 0:
            step = -step
        return step >= 1

    def temperature(self, step):
        if step > 2:
            step = tf.constant(2, step.dtype)
        return 1.0 / tf.cast(1 + step, tf.float32)

    def arch_gradients(self, inputs):
        gradients = super().arch_gradients(inputs)
        if tf.reduce_sum(gradients[0]) > 1e6:
            gradients = [tf.zeros_like(gradient) for gradient in gradients]
        return gradients


@trainer_factory.register_trainer_cls("test/branching_draws")
class BranchingDraws(Branching):
    def arch_draw(self, step):
        if step < 0:
            step = -step
        return super().arch_draw(step)

    def weight_draw(self, step):
        if step < 0:
            step = -step
        return super().weight_draw(step)


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


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "execution"), [("test/branching_gumbel", "graph"), ("test/branching_draws", "xla")]
)
def test_parts_that_are_replaced_may_branch_on_tensors(
    name, execution, experiment, make_trainer
) -> None:
    trainer = make_trainer(experiment(name, runtime={"execution": execution}))
    before = [alpha.numpy().tolist() for alpha in trainer.alphas]
    trainer.train(tf.constant(1))
    assert [alpha.numpy().tolist() for alpha in trainer.alphas] == before
    trainer.train(tf.constant(3))
    assert [alpha.numpy().tolist() for alpha in trainer.alphas] != before
