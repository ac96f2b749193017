import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import nas
from official_lite.common import errors
from official_lite.nas import resolution
from tests import rounding

ARCH = {"op": "dense", "in": [1], "depth": 2, "inner": "b"}
# Five dense layers sum over four inputs and a bias.
ROUNDINGS = 5 * (4 + 1)


def _fixed(index):
    return lambda choice: lambda choice, inputs, training: choice.branch(index, inputs)


def _nested() -> keras.Model:
    """Build a model with a choice inside a candidate and a label that two choices share."""
    inputs = keras.Input((4,))
    inner = nas.LayerChoice(
        {"a": keras.layers.Dense(4), "b": keras.layers.Identity()}, label="inner"
    )
    outer = nas.LayerChoice(
        {"deep": keras.Sequential([inner, keras.layers.Dense(4)]), "skip": keras.layers.Identity()},
        label="outer",
    )
    x = outer(inputs)
    for _ in range(2):
        x = nas.LayerChoice({"a": keras.layers.Dense(4), "b": keras.layers.ReLU()}, label="twin")(x)
    return keras.Model(inputs, x)


def test_choices_are_resolved_in_model_order_with_one_resolver_per_label() -> None:
    made = []
    resolved = nas.resolve_choices(
        _nested(), {nas.LayerChoice: lambda c: made.append(c.label) or object()}
    )
    assert [label for label, _ in resolved] == ["outer", "inner", "twin", "twin"]
    assert made == ["outer", "inner", "twin"]
    assert resolved[2][1] is resolved[3][1]


def test_choices_that_cannot_be_resolved_raise_an_error_that_names_them() -> None:
    inputs = keras.Input((4,))
    x = nas.LayerChoice({"a": keras.layers.Dense(4)}, label="x")(inputs)
    twice = keras.Model(inputs, nas.LayerChoice({"b": keras.layers.Dense(4)}, label="x")(x))
    other = keras.Model(inputs, nas.InputChoice(2, label="i")([inputs, inputs]))
    for name, act in {
        "'x'": lambda: resolution.find_choices(twice),
        "'i'": lambda: nas.resolve_choices(other, {nas.LayerChoice: lambda choice: None}),
        "`twin` is 'c'; expected one of a, b": lambda: nas.fixed_model(_nested(), {"twin": "c"}),
    }.items():
        with pytest.raises(errors.ConfigValueError, match=name):
            act()


def test_choice_inside_an_unchosen_candidate_is_inactive() -> None:
    picks = {"outer": 1, "inner": 0, "twin": 1}
    active = resolution.active_choices(_nested(), picks)
    assert [choice.label for choice in active] == ["outer", "twin", "twin"]


def test_nni_replace_functions_resolve_choices_and_append_to_the_modules_list() -> None:
    class Mean:
        def __init__(self, choice) -> None:
            self.ops = list(choice.candidates.values())

        def __call__(self, x):
            return sum(op(x) for op in self.ops) / len(self.ops)

    inputs = keras.Input((4,))
    x = nas.LayerChoice(
        {"a": keras.layers.Rescaling(1.0), "b": keras.layers.Rescaling(3.0)}, label="op"
    )(inputs)
    model = keras.Model(inputs, nas.InputChoice(2, label="in")([x, inputs]))
    modules = []
    assert nas.replace_layer_choice(model, Mean, modules) is modules
    nas.replace_input_choice(model, lambda choice: lambda tensors: tensors[0], modules)
    assert [label for label, _ in modules] == ["op", "in"]
    assert float(model(tf.ones([1, 4]))[0, 0]) == 2.0


def _model() -> keras.Model:
    inputs = keras.Input((4,))
    x = nas.LayerChoice(
        {"dense": lambda: keras.layers.Dense(4), "skip": keras.layers.Identity}, label="op"
    )(inputs)
    x = nas.InputChoice(2, label="in")([inputs, x])
    x = nas.Repeat(lambda index: keras.layers.Dense(4, activation="tanh"), (1, 3), label="depth")(x)
    inner = nas.LayerChoice(
        {"a": keras.layers.Identity, "b": lambda: keras.layers.Dense(4)}, label="inner"
    )
    x = keras.Sequential([inner, keras.layers.Dense(4)])(x)
    return keras.Model(inputs, x)


class _Own(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.op = nas.LayerChoice(
            {"a": lambda: keras.layers.Dense(4), "b": lambda: keras.layers.Dense(4)}, label="op"
        )
        self.head = keras.layers.Dense(2)

    def call(self, x):
        return self.head(self.op(x))


def _decide(model, arch) -> None:
    picks = resolution.decided_by(model, arch)
    nas.resolve_choices(model, {nas.Choice: lambda choice: _fixed(picks[choice.label])(choice)})


def test_fixed_model_computes_the_chosen_path_with_the_supernet_weights() -> None:
    model = _model()
    found = nas.fixed_model(model, ARCH)
    _decide(model, ARCH)
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    rounding.assert_close(found(x), model(x), roundings=ROUNDINGS)
    # Five 4-by-4 dense layers with a bias: `op`, two in `depth`, `inner` and the last one.
    assert found.count_params() == 5 * 20 < model.count_params()
    assert not resolution.find_choices(found)


# Keras itself triggers this warning when it saves variables.
@pytest.mark.filterwarnings("ignore:__array__ implementation")
@pytest.mark.slow
def test_fixed_model_can_be_loaded_without_importing_official_lite(tmp_path) -> None:
    found = nas.fixed_model(_model(), ARCH)
    found.save(tmp_path / "found.keras")
    x = np.ones((2, 4), np.float32)
    code = (
        "import sys, keras, numpy as np\n"
        "sys.modules['official_lite'] = None\n"
        "model = keras.models.load_model('found.keras')\n"
        "np.save('outputs.npy', model(np.ones((2, 4), np.float32)))\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)
    rounding.assert_close(np.load(tmp_path / "outputs.npy"), found(x), roundings=ROUNDINGS)


def test_rebuilt_model_inherits_the_weights_of_a_search() -> None:
    model = _model()
    with nas.fixed_arch(ARCH):
        anew = _model()
    nas.inherit_weights(anew, model, ARCH)
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    rounding.assert_close(anew(x), nas.fixed_model(model, ARCH)(x), roundings=ROUNDINGS)


def test_subclassed_model_inherits_the_weights_of_a_search() -> None:
    arch, x = {"op": "b"}, tf.ones([2, 4])
    model = _Own()
    _decide(model, arch)
    wanted = model(x)
    with nas.fixed_arch(arch):
        anew = _Own()
    anew(x)
    nas.inherit_weights(anew, model, arch)
    rounding.assert_close(anew(x), wanted, roundings=ROUNDINGS)
    with pytest.raises(errors.ConfigValueError, match="inherit_weights"):
        nas.fixed_model(model, arch)


def test_inheriting_weights_for_a_different_architecture_is_refused() -> None:
    with nas.fixed_arch({**ARCH, "depth": 3}):
        anew = _model()
    with pytest.raises(errors.ConfigValueError, match="not match the path"):
        nas.inherit_weights(anew, _model(), ARCH)


FACTORS = {"one": 1.0, "ten": 10.0, "hundred": 100.0}
# A softmax and a mixture each sum over all factors.
MIXTURE_ROUNDINGS = 2 * len(FACTORS)


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


def test_darts_weights_the_options_of_a_choice_by_the_softmax_of_alpha() -> None:
    choice = _choice()
    resolver = _with_alpha(resolution.MixtureResolver(choice))
    wanted = _softmax(np.array([0.0, 1.0, 0.5])) @ [1.0, 10.0, 100.0]
    rounding.assert_close(_compute(choice, resolver), wanted, roundings=MIXTURE_ROUNDINGS)
    assert resolver.export() == 1


def test_initial_alpha_is_nearly_uniform_or_follows_the_prior() -> None:
    alphas = np.concatenate(
        [resolution.MixtureResolver(_choice()).alpha.numpy() for _ in range(60)]
    )
    assert 0.5e-3 < alphas.std() < 2e-3
    prior = resolution.MixtureResolver(_choice(prior=[1, 2, 1])).probs()
    # Alpha has a standard deviation of 1e-3, and the probabilities have less than half of that.
    np.testing.assert_allclose(prior, [0.25, 0.5, 0.25], atol=2e-3)


@pytest.mark.parametrize("hard", [False, True])
def test_gumbel_softmax_adds_noise_and_divides_by_the_temperature(hard) -> None:
    choice = _choice()
    resolver = _with_alpha(resolution.GumbelResolver(choice, hard=hard))
    noise = np.array([3.0, 0.0, 0.0], np.float32)
    draw = resolution.Draw(noise={"factor": tf.constant(noise)}, temperature=2.0)
    with resolution.active_draw(draw):
        found = _compute(choice, resolver)
    soft = _softmax((np.array([0.0, 1.0, 0.5]) + noise) / 2.0) @ [1.0, 10.0, 100.0]
    rounding.assert_close(found, 1.0 if hard else soft, roundings=MIXTURE_ROUNDINGS, scale=100.0)


def test_path_search_uses_the_drawn_option_or_else_the_option_with_the_largest_alpha() -> None:
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


def test_gate_gradient_matches_the_formula_of_the_proxylessnas_paper() -> None:
    """∂L/∂α_i = Σ_j ∂L/∂g_j p_j (δ_ij − p_i), although the output is that of the drawn option."""
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
    rounding.assert_close(
        tape.gradient(loss, resolver.alpha.value), wanted, roundings=MIXTURE_ROUNDINGS
    )


def test_input_choice_with_concat_reduction_cannot_be_searched() -> None:
    choice = nas.InputChoice(2, 2, "concat", label="inputs")
    with pytest.raises(errors.ConfigValueError, match="`reduction='concat'`"):
        resolution.require_sum(choice)


def _noise(step, seed=1, salt=2):
    return resolution.gumbel_noise([3, 2], seed=seed, step=tf.constant(step, tf.int64), salt=salt)


def test_gumbel_noise_is_a_function_of_seed_step_and_salt() -> None:
    first, again = _noise(5), _noise(5)
    np.testing.assert_array_equal(first[0], again[0])
    assert [one.shape[0] for one in first] == [3, 2]
    for other in (_noise(6), _noise(5, seed=2), _noise(5, salt=3)):
        assert not np.array_equal(first[0], other[0])


def test_sampled_options_follow_the_distribution_of_the_logits() -> None:
    probs = np.array([0.7, 0.2, 0.1], np.float32)

    @tf.function
    def index(step):
        noise = resolution.gumbel_noise([3], seed=0, step=step, salt=0)
        return resolution.sample([tf.math.log(probs)], noise)[0]

    counts = np.bincount([int(index(tf.constant(s, tf.int64))) for s in range(600)], minlength=3)
    np.testing.assert_allclose(counts / 600, probs, atol=0.06)
