import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import nas
from official_lite.common import error_report, errors
from official_lite.nas import resolution
from tests import rounding

OPS = {
    "dense": lambda: keras.layers.Dense(4),
    "skip": keras.layers.Identity,
}


def _fixed(index):
    return lambda choice: lambda choice, inputs, training: choice.branch(index, inputs)


def test_calling_an_unresolved_choice_raises_an_error_that_suggests_task_arch(make_ops) -> None:
    choice = nas.LayerChoice(make_ops(), label="conv")
    with pytest.raises(
        errors.ConfigValueError, match=r"'conv' is still open\. Set `task\.arch`"
    ) as e:
        choice(tf.ones([2, 4]))
    assert error_report.summary(e.value).startswith("ConfigValueError: The choice 'conv' is still")


def test_candidates_with_different_output_shapes_raise_an_error_that_names_them() -> None:
    candidates = {"four": keras.layers.Dense(4), "five": keras.layers.Dense(5)}
    choice = nas.LayerChoice(candidates, label="units")
    with pytest.raises(errors.ConfigValueError, match=r"'units'.*`four` .*4.*`five` .*5"):
        choice(keras.Input((3,)))


@pytest.mark.parametrize(
    "build",
    [
        lambda: nas.LayerChoice({"one": keras.layers.Identity()}, label=""),
        lambda: nas.InputChoice(2, label=""),
        lambda: nas.Repeat(lambda index: keras.layers.Identity(), (1, 2), label=""),
    ],
)
def test_choice_with_an_empty_label_is_refused(build) -> None:
    with pytest.raises(errors.ConfigValueError, match="`label`"):
        build()


def test_input_choice_that_sums_inputs_of_different_shapes_is_refused() -> None:
    choice = nas.InputChoice(3, n_chosen=2, reduction="sum", label="inputs")
    with pytest.raises(errors.ConfigValueError, match="same shape"):
        choice([keras.Input((4,)), keras.Input((4,)), keras.Input((5,))])


def test_repeat_accepts_a_list_of_functions_that_build_blocks() -> None:
    repeat = nas.Repeat([lambda: keras.layers.Dense(4)] * 2, (1, 2), label="depth")
    assert repeat(keras.Input((4,))).shape == (None, 4)


def test_choice_resolver_can_be_replaced_after_the_model_was_called(make_ops) -> None:
    inputs = keras.Input((4,))
    model = keras.Model(inputs, nas.LayerChoice(make_ops(), label="conv")(inputs))
    x = tf.ones([2, 4])
    compiled = tf.function(lambda x: model(x))
    nas.resolve_choices(model, {nas.Choice: _fixed(1)})
    assert np.any(compiled(x))
    nas.resolve_choices(model, {nas.Choice: _fixed(2)})
    assert not np.any(model(x))
    assert not np.any(tf.function(lambda x: model(x))(x))


# Keras itself triggers this warning when it saves variables.
@pytest.mark.filterwarnings("ignore:__array__ implementation")
def test_saved_and_loaded_supernet_keeps_its_outputs_and_search_space(make_ops, tmp_path) -> None:
    inputs = keras.Input((4,))
    x = nas.LayerChoice(make_ops(), label="conv")(inputs)
    x = nas.InputChoice(2, label="input")([x, inputs])
    x = nas.Repeat(lambda index: keras.layers.Dense(4), (1, 3), label="depth")(x)
    model = keras.Model(inputs, x)
    model.save(tmp_path / "supernet.keras")
    loaded = keras.models.load_model(tmp_path / "supernet.keras")
    for one in (model, loaded):
        nas.resolve_choices(one, {nas.Choice: _fixed(1)})
    # The path has at most five layers, each of which sums over four inputs.
    rounding.assert_close(loaded(tf.ones([2, 4])), model(tf.ones([2, 4])), roundings=5 * 4)
    assert resolution.space_of(loaded) == resolution.space_of(model)
    assert len(keras.models.clone_model(model).weights) == len(model.weights)


def _model(**kwargs) -> keras.Model:
    inputs = [keras.Input((4,)), keras.Input((4,))]
    return keras.Model(inputs, nas.Cell(OPS, num_nodes=2, label="cell", **kwargs)(inputs))


def test_choices_in_a_cell_are_labeled_by_node_and_node_outputs_are_merged() -> None:
    space = resolution.space_of(_model())
    assert set(space) == {
        f"cell/{kind}_{node}_{op}" for kind in ("op", "input") for node in (2, 3) for op in (0, 1)
    }
    assert space["cell/input_2_0"] == [[0], [1]]
    assert space["cell/input_3_1"] == [[0], [1], [2]]
    for merge, size in {"concat": 8, "last": 4}.items():
        assert _model(merge=merge).output_shape == (None, size)


def test_fixed_model_of_a_cell_has_only_keras_layers_and_matches_a_rebuilt_cell(tmp_path) -> None:
    model = _model()
    arch = {label: options[-1] for label, options in resolution.space_of(model).items()}
    arch["cell/op_2_0"] = "dense"
    found = nas.fixed_model(model, arch)
    with nas.fixed_arch(arch):
        anew = _model()
    assert found.count_params() == anew.count_params() == 20
    nas.inherit_weights(anew, model, arch)
    x = [np.ones((1, 4), np.float32), np.full((1, 4), 2.0, np.float32)]
    # The path has three layers, with sums over four inputs and over two nodes.
    rounding.assert_close(found(x), anew(x), roundings=3 * (4 + 2))
    modules = {type(layer).__module__.partition(".")[0] for layer in found.layers}
    assert modules == {"keras"}
