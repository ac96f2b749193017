import math

import keras
import numpy as np
import pytest

from official_lite.modeling import activations
from tests import rounding

X = np.array([-4.0, -1.0, 0.0, 0.25, 2.0, 7.0], np.float32)


def relu6(x):
    return np.clip(x, 0, 6)


EXPECTED = {
    "gelu": 0.5 * X * (1 + np.tanh(math.sqrt(2 / math.pi) * (X + 0.044715 * X**3))),
    "mish": X * np.tanh(np.log1p(np.exp(X))),
    "relu6": relu6(X),
    "hard_sigmoid": relu6(X + 3) * 0.16667,
    "simple_swish": X / (1 + np.exp(-X)),
    "hard_swish": X * relu6(X + 3) / 6,
    "identity": X,
}


@pytest.mark.parametrize("name", activations.__all__)
def test_activation_follows_its_formula_and_survives_serialization_in_a_layer(name):
    activation = getattr(activations, name)
    # Each formula has about eight operations, some of which subtract numbers of magnitude 1.
    tolerance = rounding.tolerance(roundings=8)
    np.testing.assert_allclose(activation(X), EXPECTED[name], rtol=tolerance, atol=tolerance)
    layer = keras.layers.Activation(activation)
    restored = keras.layers.deserialize(keras.layers.serialize(layer))
    assert restored.activation is activation
