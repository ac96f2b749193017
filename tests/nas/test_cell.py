import keras
import numpy as np
import pytest

from official_lite import nas
from official_lite.nas import resolution
from tests import rounding

OPS = {
    "dense": lambda: keras.layers.Dense(4),
    "skip": keras.layers.Identity,
}


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
