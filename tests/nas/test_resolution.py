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
# Five dense layers of four inputs and a bias.
ROUNDINGS = 5 * (4 + 1)


def _nested() -> keras.Model:
    """A choice within a candidate, and a label that comes up twice."""
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


def test_choices_come_in_the_order_of_the_model_each_once() -> None:
    labels = [choice.label for choice in resolution.find_choices(_nested())]
    assert labels == ["outer", "inner", "twin", "twin"]


def test_choices_of_one_label_share_a_resolver() -> None:
    made = []
    resolved = nas.resolve_choices(
        _nested(), {nas.LayerChoice: lambda c: made.append(c.label) or object()}
    )
    assert [label for label, _ in resolved] == ["outer", "inner", "twin", "twin"]
    assert made == ["outer", "inner", "twin"]
    assert resolved[2][1] is resolved[3][1]


def test_kind_without_a_maker_is_refused() -> None:
    inputs = keras.Input((4,))
    model = keras.Model(inputs, nas.InputChoice(2, label="i")([inputs, inputs]))
    with pytest.raises(errors.ConfigValueError, match="InputChoice 'i' is not supported"):
        nas.resolve_choices(model, {nas.LayerChoice: lambda choice: None})


def test_one_label_with_different_options_is_refused() -> None:
    inputs = keras.Input((4,))
    x = nas.LayerChoice({"a": keras.layers.Dense(4)}, label="x")(inputs)
    x = nas.LayerChoice({"b": keras.layers.Dense(4)}, label="x")(x)
    with pytest.raises(errors.ConfigValueError, match="the same options, but these differ"):
        resolution.find_choices(keras.Model(inputs, x))


def test_choice_within_what_was_left_out_is_not_active() -> None:
    picks = {"outer": 1, "inner": 0, "twin": 1}
    active = resolution.active_choices(_nested(), picks)
    assert [choice.label for choice in active] == ["outer", "twin", "twin"]


def test_nni_names_replace_each_position_and_add_to_the_list() -> None:
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


def test_architecture_is_decided_by_index() -> None:
    assert resolution.decided_by(_nested(), {"outer": "skip", "twin": "b"}) == {
        "outer": 1,
        "inner": 0,
        "twin": 1,
    }
    with pytest.raises(errors.ConfigValueError, match="`twin` is 'c'; expected one of a, b"):
        resolution.decided_by(_nested(), {"twin": "c"})


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
    nas.resolve_choices(
        model, {nas.Choice: lambda choice: resolution.FixedResolver(picks[choice.label])}
    )


def test_found_model_computes_the_chosen_path_with_its_weights() -> None:
    model = _model()
    found = nas.fixed_model(model, ARCH)
    _decide(model, ARCH)
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    rounding.assert_close(found(x), model(x), roundings=ROUNDINGS)
    # Dense layers of 4 by 4 with a bias: op, two of the depth, inner, and the last.
    assert found.count_params() == 5 * 20 < model.count_params()
    assert not resolution.find_choices(found)


# Keras itself, which saves variables.
@pytest.mark.filterwarnings("ignore:__array__ implementation")
@pytest.mark.slow
def test_found_model_loads_without_this_package(tmp_path) -> None:
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


def test_model_that_is_built_anew_inherits_the_weights() -> None:
    model = _model()
    with nas.fixed_arch(ARCH):
        anew = _model()
    nas.inherit_weights(anew, model, ARCH)
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    rounding.assert_close(anew(x), nas.fixed_model(model, ARCH)(x), roundings=ROUNDINGS)


def test_class_of_ones_own_inherits_the_weights() -> None:
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


def test_weights_of_another_model_are_refused() -> None:
    with nas.fixed_arch({**ARCH, "depth": 3}):
        anew = _model()
    with pytest.raises(errors.ConfigValueError, match="not match the path"):
        nas.inherit_weights(anew, _model(), ARCH)
