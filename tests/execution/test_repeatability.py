import keras
import pytest
import tensorflow as tf

from official_lite.execution import repeatability


def _find(step, model=None, checkpoint=None):
    @tf.function
    def loop(num_steps):
        for _ in tf.range(num_steps):
            step()

    return list(
        repeatability.find_random_numbers(
            [loop.get_concrete_function(tf.constant(1))], model, checkpoint
        )
    )


@pytest.mark.parametrize(
    "draw",
    [
        lambda: tf.random.shuffle(tf.range(3)),
        lambda: keras.random.normal([2]),
    ],
)
def test_stateful_random_ops_are_reported_as_not_repeatable(draw):
    assert len(_find(draw)) == 1


def test_random_numbers_of_a_generator_outside_the_checkpoint_are_reported_as_not_repeatable():
    generator = keras.random.SeedGenerator(1, name="mine")
    names = _find(lambda: keras.random.normal([2], seed=generator))
    assert names == ["mine/seed_generator_state"]


@pytest.mark.parametrize("kind", [keras.random.SeedGenerator, tf.random.Generator.from_seed])
def test_random_numbers_of_a_generator_saved_in_the_checkpoint_are_repeatable(kind):
    generator = kind(1)
    state = generator.state

    def draw():
        if isinstance(generator, tf.random.Generator):
            return generator.normal([2])
        return keras.random.normal([2], seed=generator)

    assert len(_find(draw)) == 1
    assert _find(draw, checkpoint=tf.train.Checkpoint(state=state)) == []


def test_model_dropout_and_stateless_random_ops_are_repeatable():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dropout(0.5)])

    def step():
        tf.random.stateless_uniform([2], seed=[1, 2])
        model(tf.ones([1, 2]), training=True)

    assert _find(step, model) == []


def test_dropout_on_several_replicas_is_repeatable(two_replicas):
    with two_replicas.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dropout(0.5)])

    def step():
        two_replicas.run(lambda: model(tf.ones([1, 2]), training=True))

    assert _find(step, model) == []


def test_unrepeatable_random_numbers_in_training_log_one_warning(
    experiment, make_trainer, make_task, caplog
):
    class Noisy(type(make_task(experiment()))):
        def build_losses(self, labels, model_outputs, aux_losses=None):
            loss = super().build_losses(labels, model_outputs, aux_losses)
            return loss + 0 * tf.random.uniform([], name="noise")

    trainer = make_trainer(experiment(), task_cls=Noisy)
    trainer.train(tf.constant(1))
    trainer.train(tf.constant(1))
    assert caplog.text.count("draws different numbers") == 1
    assert "noise" in caplog.text
