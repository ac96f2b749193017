import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import nas
from official_lite.common import errors
from official_lite.nas import resolution
from tests import rounding

OPS = {
    "dense": lambda: keras.layers.Dense(4),
    "skip": keras.layers.Identity,
}


def _fixed(index):
    return lambda choice: resolution.FixedResolver(index)


def _resolve(model, index, kind=nas.Choice) -> None:
    resolution.resolve_choices(model, {kind: _fixed(index)})


def test_open_choice_does_not_compute_but_says_what_to_do(make_ops) -> None:
    choice = nas.LayerChoice(make_ops(), label="conv")
    with pytest.raises(errors.ConfigValueError, match=r"'conv' is not made\. Set `task\.arch`"):
        choice(tf.ones([2, 4]))


def test_chosen_candidate_takes_the_place_of_the_choice(make_ops) -> None:
    created = []
    candidates = {
        name: lambda name=name, make=make: created.append(name) or make()
        for name, make in make_ops().items()
    }
    with nas.fixed_arch({"conv": "linear"}):
        layer = nas.LayerChoice(candidates, label="conv")
    assert isinstance(layer, keras.layers.Dense)
    assert created == ["linear"]


def test_candidates_of_different_shapes_are_named() -> None:
    candidates = {"four": keras.layers.Dense(4), "five": keras.layers.Dense(5)}
    choice = nas.LayerChoice(candidates, label="units")
    with pytest.raises(errors.ConfigValueError, match=r"'units'.*`four` .*4.*`five` .*5"):
        choice(keras.Input((3,)))


def test_resolver_is_swapped_on_a_model_that_was_called(make_ops) -> None:
    inputs = keras.Input((4,))
    model = keras.Model(inputs, nas.LayerChoice(make_ops(), label="conv")(inputs))
    x = tf.ones([2, 4])
    compiled = tf.function(lambda x: model(x))
    _resolve(model, 1)
    assert np.any(compiled(x))
    _resolve(model, 2)
    assert not np.any(model(x))
    assert not np.any(tf.function(lambda x: model(x))(x))


# Keras itself, which saves variables.
@pytest.mark.filterwarnings("ignore:__array__ implementation")
def test_model_with_choices_is_saved_and_loaded(make_ops, tmp_path) -> None:
    inputs = keras.Input((4,))
    x = nas.LayerChoice(make_ops(), label="conv")(inputs)
    x = nas.InputChoice(2, label="input")([x, inputs])
    x = nas.Repeat(lambda index: keras.layers.Dense(4), (1, 3), label="depth")(x)
    model = keras.Model(inputs, x)
    model.save(tmp_path / "supernet.keras")
    loaded = keras.models.load_model(tmp_path / "supernet.keras")
    for one in (model, loaded):
        _resolve(one, 1)
    # At most five layers, with sums over four inputs.
    rounding.assert_close(loaded(tf.ones([2, 4])), model(tf.ones([2, 4])), roundings=5 * 4)
    assert resolution.space_of(loaded) == resolution.space_of(model)
    assert len(keras.models.clone_model(model).weights) == len(model.weights)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_depth_is_the_number_of_blocks(depth) -> None:
    def blocks(index):
        return keras.layers.Rescaling(2.0)

    choice = nas.Repeat(blocks, (0, 3), label="depth")
    choice.set_resolver(resolution.FixedResolver(depth))
    x = tf.ones([1, 1])
    with nas.fixed_arch({"depth": depth}):
        fixed = nas.Repeat(blocks, (0, 3), label="depth")
    assert float(choice(x)[0, 0]) == float(fixed(x)[0, 0]) == 2.0**depth
    np.testing.assert_allclose(tf.concat(choice.outputs(x), 0)[:, 0], [1.0, 2.0, 4.0, 8.0])


def test_value_is_for_models_that_are_built_anew() -> None:
    with nas.fixed_arch({"units": 32}):
        assert nas.ValueChoice([16, 32], label="units") == 32
    with pytest.raises(errors.ConfigValueError, match="one-shot trainers"):
        nas.ValueChoice([16, 32], label="units")


@pytest.mark.parametrize(
    "make",
    [
        lambda: nas.LayerChoice({"a": keras.layers.Identity}, label=""),
        lambda: nas.Repeat(lambda i: keras.layers.Identity(), (3, 2), label="d"),
        lambda: nas.LayerChoice({"a": keras.layers.Identity}, label="l", prior=[0.0]),
    ],
)
def test_choice_that_can_not_be_is_refused(make) -> None:
    with pytest.raises(errors.ConfigValueError):
        make()


def test_candidate_is_a_layer() -> None:
    with pytest.raises(errors.ConfigTypeError, match="A candidate must be a layer"):
        nas.LayerChoice({"a": lambda: 3}, label="l")


@pytest.mark.parametrize(
    ("n_chosen", "options"),
    [
        (1, [[0], [1], [2]]),
        (2, [[0, 1], [0, 2], [1, 2]]),
        (None, [[0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]]),
    ],
)
def test_inputs_are_chosen_as_sets(n_chosen, options) -> None:
    choice = nas.InputChoice(3, n_chosen, label="inputs")
    assert choice.options == options


@pytest.mark.parametrize(
    ("reduction", "wanted"), [("sum", [4.0]), ("mean", [2.0]), ("concat", [1.0, 3.0])]
)
def test_chosen_inputs_are_reduced_alike_open_and_fixed(reduction, wanted) -> None:
    x = [tf.constant([[1.0]]), tf.constant([[2.0]]), tf.constant([[3.0]])]
    choice = nas.InputChoice(3, 2, reduction, label="inputs")
    choice.set_resolver(resolution.FixedResolver(1))
    np.testing.assert_allclose(choice(x)[0], wanted)
    with nas.fixed_arch({"inputs": [0, 2]}):
        fixed = nas.InputChoice(3, 2, reduction, label="inputs")
    np.testing.assert_allclose(fixed(x)[0], wanted)


def test_reduction_none_gives_the_list() -> None:
    with nas.fixed_arch({"inputs": [0, 1]}):
        fixed = nas.InputChoice(2, 2, "none", label="inputs")
    assert len(fixed([tf.ones([1]), tf.zeros([1])])) == 2


def test_too_many_sets_of_inputs_are_refused() -> None:
    with pytest.raises(errors.ConfigValueError, match="Use several choices of one input"):
        nas.InputChoice(20, None, label="inputs")


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: nas.InputChoice(2, label=""), "needs a `label`"),
        (lambda: nas.InputChoice(2, 3, label="i"), "`n_chosen` of 'i' is 3; expected 1 to 2"),
        (lambda: nas.InputChoice(2, reduction="som", label="i"), "'som'.*sum"),
    ],
)
def test_choice_of_inputs_that_can_not_be_is_refused(make, complaint) -> None:
    with pytest.raises(errors.ConfigValueError, match=complaint):
        make()


def _model(**kwargs) -> keras.Model:
    inputs = [keras.Input((4,)), keras.Input((4,))]
    return keras.Model(inputs, nas.Cell(OPS, num_nodes=2, label="cell", **kwargs)(inputs))


def test_labels_say_node_and_number() -> None:
    space = resolution.space_of(_model())
    assert set(space) == {
        f"cell/{kind}_{node}_{op}" for kind in ("op", "input") for node in (2, 3) for op in (0, 1)
    }
    assert space["cell/input_2_0"] == [[0], [1]]
    assert space["cell/input_3_1"] == [[0], [1], [2]]


@pytest.mark.parametrize(("merge", "size"), [("concat", 8), ("last", 4)])
def test_nodes_are_merged(merge, size) -> None:
    assert _model(merge=merge).output_shape == (None, size)


def test_found_cell_is_plain_keras(tmp_path) -> None:
    model = _model()
    arch = {label: options[-1] for label, options in resolution.space_of(model).items()}
    arch["cell/op_2_0"] = "dense"
    found = nas.fixed_model(model, arch)
    with nas.fixed_arch(arch):
        anew = _model()
    assert found.count_params() == anew.count_params() == 20
    nas.inherit_weights(anew, model, arch)
    x = [np.ones((1, 4), np.float32), np.full((1, 4), 2.0, np.float32)]
    # Three layers, with sums over four inputs and two nodes.
    rounding.assert_close(found(x), anew(x), roundings=3 * (4 + 2))
    modules = {type(layer).__module__.partition(".")[0] for layer in found.layers}
    assert modules == {"keras"}
