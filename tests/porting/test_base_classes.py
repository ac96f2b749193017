import libcst as cst
import pytest

from official_lite.porting import base_classes

HEAD = "import keras\nfrom keras import layers\n"


def _rewritten(text: str) -> str:
    return base_classes.rewrite(cst.parse_module(text)).code


KERAS2 = {
    "class A(layers.Layer):\n  pass": "class A(keras2.Layer):\n  pass",
    "class A(keras.Model, B):\n  pass": "class A(keras2.Keras2Habits, keras.Model, B):\n  pass",
    "class A(layers.MultiHeadAttention):\n  pass": "class A(keras2.MultiHeadAttention):\n  pass",
    "class A(keras.layers.Dense):\n  pass": (
        "class A(keras2.Keras2Habits, keras.layers.Dense):\n  pass"
    ),
    "class A(keras.losses.Loss):\n  pass": "class A(keras2.Loss):\n  pass",
    "class A(keras.layers.Conv2D):\n  pass": "class A(keras2.Conv2D):\n  pass",
    "x = layers.MultiHeadAttention(2, 4)": "x = keras2.MultiHeadAttention(2, 4)",
    "conv = layers.SeparableConv2D": "conv = keras2.SeparableConv2D",
    "y = keras.backend.dot(x, w)": "y = keras2.backend.dot(x, w)",
    "x = keras.activations.hard_sigmoid(y)": "x = keras2.backend.hard_sigmoid(y)",
    "f = keras.activations.get('hard_sigmoid')": (
        "f = keras.activations.get(keras2.backend.hard_sigmoid)"
    ),
    "x = layers.LSTM(2, recurrent_activation='hard_sigmoid', name='hard_sigmoid')": (
        "x = layers.LSTM(2, recurrent_activation=keras2.backend.hard_sigmoid, name='hard_sigmoid')"
    ),
    "class A(keras.optimizers.Adam):\n  def update_step(self, gradient, variable): pass": (
        "class A(keras2.UpdateStep, keras.optimizers.Adam):\n"
        "  def update_step(self, gradient, variable): pass"
    ),
    "class A(keras.__internal__.losses.LossFunctionWrapper):\n  pass": (
        "class A(keras2.LossFunctionWrapper):\n  pass"
    ),
}


def test_base_classes_and_layers_are_replaced_by_their_keras2_counterparts() -> None:
    expected = {
        old: f"from official_lite import keras2\n{HEAD}{new}" for old, new in KERAS2.items()
    }
    assert {old: _rewritten(HEAD + old) for old in KERAS2} == expected


@pytest.mark.parametrize("base", ["Optimizer", "Adam"])
def test_optimizer_that_overrides_keras_2_methods_gets_a_keras2_base_class(base: str) -> None:
    text = f"{HEAD}class A(keras.optimizers.{base}):\n  def"
    old = _rewritten(f"{text} _resource_apply_dense(self, grad, var): pass\n")
    assert f"class A(keras2.{base}):" in old
    new = f"{text} update_step(self, g, v, rate): pass\n"
    assert _rewritten(new) == new


IMPORTS = {
    "from keras.layers import Dense, MultiHeadAttention as MHA, Softmax": (
        "from keras.layers import Dense\n"
        "from official_lite.keras2 import MultiHeadAttention as MHA\n"
        "from official_lite.keras2 import Softmax"
    ),
    "# Private.\nfrom keras.__internal__.losses import LossFunctionWrapper": (
        "# Private.\nfrom official_lite.keras2 import LossFunctionWrapper"
    ),
    "from keras.backend import dot": "from official_lite.keras2.backend import dot",
    "from tensorflow.train import Checkpoint": "from official_lite.keras2 import Checkpoint",
}


def test_imports_of_keras_names_become_imports_of_their_keras2_counterparts() -> None:
    # Only modules that contain the name of a replaced class are rewritten.
    used = "\nCheckpoint, MultiHeadAttention\n"
    expected = {old: new + used for old, new in IMPORTS.items()}
    assert {old: _rewritten(old + used) for old in IMPORTS} == expected


def test_ported_config_class_inherits_from_hyperparams_lenient() -> None:
    head = "from official_lite.core import config_definitions as cfg\n"
    text = "class A(cfg.TaskConfig):\n  size: int = 3\n"
    rewritten = _rewritten(head + text)
    assert rewritten == (
        f"from official_lite.modeling import hyperparams\n{head}"
        "class A(hyperparams.Lenient, cfg.TaskConfig):\n  size: int = 3\n"
    )
    assert _rewritten(rewritten) == rewritten


def test_config_object_as_default_becomes_a_dataclass_default_factory() -> None:
    head = "import dataclasses\nfrom official_lite.modeling import optimization\n"
    text = (
        "@dataclasses.dataclass\n"
        "class A(optimization.OptimizationConfig):\n"
        "  lr: optimization.LrConfig = {}\n"
        "  size: int = 3\n"
        "  other: B = make()\n"
    )
    call = 'optimization.LrConfig(\n      type="cosine")'
    rewritten = _rewritten(head + text.format(call))
    assert f"= dataclasses.field(default_factory=lambda: {call})\n  size: int = 3\n" in rewritten
    assert "other: B = make()" in rewritten
    assert _rewritten(rewritten) == rewritten


OTHERS = [
    "class A(B):\n  pass",
    "from official_lite import keras2\nclass A(keras2.Keras2Habits, keras.Model):\n  pass",
    "class A(keras.metrics.Metric):\n  pass",
    "class A(keras.optimizers.Adam):\n  def update_step(self, g, v, learning_rate): pass",
    "x = layers.Dense(3)",
    "def f(layers):\n  return layers.MultiHeadAttention",
]


def test_porting_leaves_unrelated_classes_and_layers_unchanged() -> None:
    assert [_rewritten(HEAD + text) for text in OTHERS] == [HEAD + text for text in OTHERS]
