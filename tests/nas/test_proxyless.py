import numpy as np
import tensorflow as tf

from official_lite.nas import draws


def test_weights_learn_on_one_path_and_the_architecture_behind_gates(
    experiment, make_trainer
) -> None:
    trainer = make_trainer(experiment("proxyless"))
    step = tf.constant(3, tf.int64)
    arch, weights = trainer.arch_draw(step), trainer.weight_draw(step)
    assert (arch.gates, weights.gates) == (True, False)
    assert set(arch.paths) == {"first", "second"}


def test_paths_are_drawn_by_what_is_preferred(experiment, make_trainer) -> None:
    trainer = make_trainer(experiment("proxyless"))
    for alpha in trainer.alphas:
        alpha.assign([-20.0, 20.0, -20.0])
    for step in range(5):
        draw = trainer.weight_draw(tf.constant(step, tf.int64))
        assert [int(index) for index in draw.paths.values()] == [1, 1]
    assert trainer.export() == {"first": "linear", "second": "linear"}


def test_a_step_changes_the_weights_of_its_path_only(experiment, make_trainer) -> None:
    params = experiment("proxyless", trainer={"one_shot": {"idle_paths": "freeze"}})
    trainer = make_trainer(params)
    trainer.train(tf.constant(2))
    choice = next(layer for layer in trainer.model.layers if getattr(layer, "label", "") == "first")
    before = {n: [w.numpy() for w in c.weights] for n, c in choice.candidates.items()}
    alphas = [alpha.numpy() for alpha in trainer.alphas]
    trainer.arch_optimizer.learning_rate = 0.0
    path = trainer.weight_draw(trainer.global_step.read_value()).paths["first"]
    trainer.train(tf.constant(1))
    changed = {
        name: any(
            not np.array_equal(w.numpy(), b) for w, b in zip(c.weights, before[name], strict=True)
        )
        for name, c in choice.candidates.items()
    }
    drawn = choice.options[int(path)]
    assert not any(value for name, value in changed.items() if name != drawn)
    np.testing.assert_allclose([alpha.numpy() for alpha in trainer.alphas], alphas, atol=1e-6)
    assert draws.current() is None
