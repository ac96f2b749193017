"""A pattern is looked for in a variable's path and in its name."""

import keras
import pytest
import tensorflow as tf

from official_lite.modeling.optimization.adamw import matches_any


@pytest.mark.parametrize(
    ("patterns", "is_match"),
    [
        (["layer_norm"], True),
        (["^gamma$"], True),
        (["kernel", "gamma"], True),
        (["encoder/.*/gamma"], True),
        (["beta", "bias"], False),
        ([], False),
        (None, False),
    ],
)
def test_keras_variable_matches_by_path_or_name(patterns: list[str], is_match: bool) -> None:
    with keras.name_scope("encoder"), keras.name_scope("layer_normalization"):
        variable = keras.Variable([1.0], name="gamma")
    assert variable.path == "encoder/layer_normalization/gamma"
    assert matches_any(variable, patterns) is is_match


def test_raw_variable_matches_by_its_name_without_the_number() -> None:
    variable = tf.Variable([1.0], name="dense/bias")
    assert matches_any(variable, ["bias$"])
    assert not matches_any(variable, ["0"])


def test_patterns_of_keras_2_match_names_without_their_ending() -> None:
    variable = keras.Variable([0.0], name="kernel")
    assert matches_any(variable, ".*(kernel|weight):0$")
    assert matches_any(variable, ["bias:0", "kernel:0"])
    assert not matches_any(variable, "bias:0")
