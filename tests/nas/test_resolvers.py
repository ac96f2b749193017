import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import nas
from official_lite.common import errors
from official_lite.nas import resolution
from tests import rounding

FACTORS = {"one": 1.0, "ten": 10.0, "hundred": 100.0}
# Of the sums of a softmax and of a mixture.
ROUNDINGS = 2 * len(FACTORS)


def _choice(**kwargs) -> nas.LayerChoice:
    return nas.LayerChoice(
        {name: keras.layers.Rescaling(factor) for name, factor in FACTORS.items()},
        label="factor",
        **kwargs,
    )


def _with_alpha(resolver, values=(0.0, 1.0, 0.5)):
    resolver.alpha.assign(list(values))
    return resolver


def _compute(choice, resolver) -> float:
    choice.set_resolver(resolver)
    return float(choice(tf.ones([1, 1]))[0, 0])


def _softmax(values) -> np.ndarray:
    return np.exp(values) / np.exp(values).sum()


def test_mixture_is_the_sum_by_the_softmax_of_alpha() -> None:
    choice = _choice()
    resolver = _with_alpha(resolution.MixtureResolver(choice))
    wanted = _softmax(np.array([0.0, 1.0, 0.5])) @ [1.0, 10.0, 100.0]
    rounding.assert_close(_compute(choice, resolver), wanted, roundings=ROUNDINGS)
    assert resolver.export() == 1


def test_alpha_begins_nearly_even_or_at_the_prior() -> None:
    alphas = np.concatenate(
        [resolution.MixtureResolver(_choice()).alpha.numpy() for _ in range(60)]
    )
    assert 0.5e-3 < alphas.std() < 2e-3
    prior = resolution.MixtureResolver(_choice(prior=[1, 2, 1])).probs()
    # Alpha is drawn with a standard deviation of 1e-3, the shares with less than half of it.
    np.testing.assert_allclose(prior, [0.25, 0.5, 0.25], atol=2e-3)


@pytest.mark.parametrize("hard", [False, True])
def test_gumbel_adds_noise_and_cools(hard) -> None:
    choice = _choice()
    resolver = _with_alpha(resolution.GumbelResolver(choice, hard=hard))
    noise = np.array([3.0, 0.0, 0.0], np.float32)
    draw = resolution.Draw(noise={"factor": tf.constant(noise)}, temperature=2.0)
    with resolution.active_draw(draw):
        found = _compute(choice, resolver)
    soft = _softmax((np.array([0.0, 1.0, 0.5]) + noise) / 2.0) @ [1.0, 10.0, 100.0]
    rounding.assert_close(found, 1.0 if hard else soft, roundings=ROUNDINGS, scale=100.0)


def test_path_is_the_drawn_option_or_the_preferred_one() -> None:
    choice = _choice()
    resolver = _with_alpha(resolution.PathResolver(choice))
    assert _compute(choice, resolver) == 10.0
    with resolution.active_draw(resolution.Draw(paths={"factor": tf.constant(2)})):
        assert _compute(choice, resolver) == 100.0


def test_options_that_were_not_drawn_have_no_gradient() -> None:
    choice = nas.LayerChoice({n: keras.layers.Dense(1) for n in "ab"}, label="factor")
    choice.set_resolver(resolution.PathResolver(choice))
    choice.build((1, 1))
    with (
        resolution.active_draw(resolution.Draw(paths={"factor": tf.constant(1)})),
        tf.GradientTape() as tape,
    ):
        loss = tf.reduce_sum(choice(tf.ones([1, 1])))
    gradients = tape.gradient(loss, choice.trainable_variables)
    sizes = [0.0 if g is None else float(tf.reduce_sum(tf.abs(g))) for g in gradients]
    assert sizes == [0.0, 0.0, 1.0, 1.0]


def test_gates_have_the_gradient_of_the_paper() -> None:
    """∂L/∂α_i = Σ_j ∂L/∂g_j p_j (δ_ij − p_i), with the output of one option."""
    choice = _choice()
    resolver = _with_alpha(resolution.GateResolver(choice))
    choice.set_resolver(resolver)
    draw = resolution.Draw(paths={"factor": tf.constant(2)}, gates=True)
    with resolution.active_draw(draw), tf.GradientTape() as tape:
        out = choice(tf.ones([1, 1]))[0, 0]
        loss = tf.square(out)
    assert float(out) == pytest.approx(100.0)
    p, gate_gradient = _softmax(np.array([0.0, 1.0, 0.5])), 200.0 * np.array([1.0, 10.0, 100.0])
    wanted = (gate_gradient * p) @ (np.eye(3) - p)
    rounding.assert_close(tape.gradient(loss, resolver.alpha.value), wanted, roundings=ROUNDINGS)


def test_inputs_that_are_not_added_can_not_be_searched() -> None:
    choice = nas.InputChoice(2, 2, "concat", label="inputs")
    with pytest.raises(errors.ConfigValueError, match="`reduction='concat'`"):
        resolution.require_sum(choice)


def _noise(step, seed=1, salt=2):
    return resolution.gumbel_noise([3, 2], seed=seed, step=tf.constant(step, tf.int64), salt=salt)


def test_draw_is_a_function_of_seed_step_and_salt() -> None:
    first, again = _noise(5), _noise(5)
    np.testing.assert_array_equal(first[0], again[0])
    assert [one.shape[0] for one in first] == [3, 2]
    for other in (_noise(6), _noise(5, seed=2), _noise(5, salt=3)):
        assert not np.array_equal(first[0], other[0])


def test_samples_have_the_distribution_of_the_logits() -> None:
    probs = np.array([0.7, 0.2, 0.1], np.float32)

    @tf.function
    def index(step):
        noise = resolution.gumbel_noise([3], seed=0, step=step, salt=0)
        return resolution.sample([tf.math.log(probs)], noise)[0]

    counts = np.bincount([int(index(tf.constant(s, tf.int64))) for s in range(600)], minlength=3)
    np.testing.assert_allclose(counts / 600, probs, atol=0.06)


def test_draw_is_active_only_within_the_block() -> None:
    draw = resolution.Draw(temperature=2.0)
    with resolution.active_draw(draw):
        assert resolution.current_draw() is draw
    assert resolution.current_draw() is None
