import keras
import pytest
import tensorflow as tf

from official_lite import nas
from official_lite.common import errors
from official_lite.nas import resolution


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
