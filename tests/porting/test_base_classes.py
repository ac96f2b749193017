import libcst as cst
import pytest

from official_lite.porting import base_classes

HEAD = "import keras\nfrom keras import layers\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("class A(layers.Layer):\n  pass", "class A(keras2.Layer):\n  pass"),
        (
            "class A(keras.Model, B):\n  pass",
            "class A(keras2.Keras2Habits, keras.Model, B):\n  pass",
        ),
        (
            "class A(layers.MultiHeadAttention):\n  pass",
            "class A(keras2.MultiHeadAttention):\n  pass",
        ),
        (
            "class A(keras.layers.Dense):\n  pass",
            "class A(keras2.Keras2Habits, keras.layers.Dense):\n  pass",
        ),
        ("class A(keras.losses.Loss):\n  pass", "class A(keras2.Loss):\n  pass"),
        ("class A(keras.layers.Conv2D):\n  pass", "class A(keras2.Conv2D):\n  pass"),
        ("x = layers.MultiHeadAttention(2, 4)", "x = keras2.MultiHeadAttention(2, 4)"),
        ("conv = layers.SeparableConv2D", "conv = keras2.SeparableConv2D"),
        ("y = keras.backend.dot(x, w)", "y = keras2.backend.dot(x, w)"),
        (
            "class A(keras.optimizers.Adam):\n  def update_step(self, gradient, variable): pass",
            "class A(keras2.UpdateStep, keras.optimizers.Adam):\n"
            "  def update_step(self, gradient, variable): pass",
        ),
        (
            "class A(keras.__internal__.losses.LossFunctionWrapper):\n  pass",
            "class A(keras2.LossFunctionWrapper):\n  pass",
        ),
    ],
)
def test_subclasses_and_attention_have_the_habits_of_keras_2(before: str, after: str) -> None:
    rewritten = base_classes.rewrite(cst.parse_module(HEAD + before)).code
    assert rewritten == f"from official_lite import keras2\n{HEAD}{after}"


@pytest.mark.parametrize("base", ["Optimizer", "Adam"])
def test_optimizer_with_extension_points_of_keras_2_keeps_them(base: str) -> None:
    text = (
        "class A(keras.optimizers.{}):\n  def _resource_apply_dense(self, grad, var):\n    pass\n"
    )
    rewritten = base_classes.rewrite(cst.parse_module(HEAD + text.format(base))).code
    assert f"class A(keras2.{base}):" in rewritten
    plain = (
        f"{HEAD}class A(keras.optimizers.{base}):\n  def update_step(self, g, v, rate):\n    pass\n"
    )
    assert base_classes.rewrite(cst.parse_module(plain)).code == plain


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "from keras.layers import Dense, MultiHeadAttention as MHA, Softmax",
            "from keras.layers import Dense\n"
            "from official_lite.keras2 import MultiHeadAttention as MHA\n"
            "from official_lite.keras2 import Softmax",
        ),
        (
            "# Private.\nfrom keras.__internal__.losses import LossFunctionWrapper",
            "# Private.\nfrom official_lite.keras2 import LossFunctionWrapper",
        ),
        ("from keras.backend import dot", "from official_lite.keras2.backend import dot"),
        ("from tensorflow.train import Checkpoint", "from official_lite.keras2 import Checkpoint"),
    ],
)
def test_counterparts_are_imported_by_their_names(before: str, after: str) -> None:
    # The name of a replaced class makes the module worth a visit.
    used = "\nCheckpoint, MultiHeadAttention\n"
    assert base_classes.rewrite(cst.parse_module(before + used)).code == after + used


def test_configs_accept_what_they_do_in_the_model_garden() -> None:
    head = "from official_lite.core import config_definitions as cfg\n"
    text = "class A(cfg.TaskConfig):\n  size: int = 3\n"
    rewritten = base_classes.rewrite(cst.parse_module(head + text)).code
    assert rewritten == (
        f"from official_lite.modeling import hyperparams\n{head}"
        "class A(hyperparams.Lenient, cfg.TaskConfig):\n  size: int = 3\n"
    )
    assert base_classes.rewrite(cst.parse_module(rewritten)).code == rewritten


def test_config_that_is_the_default_of_a_field_is_made_per_instance() -> None:
    head = "import dataclasses\nfrom official_lite.modeling import optimization\n"
    text = (
        "@dataclasses.dataclass\n"
        "class A(optimization.OptimizationConfig):\n"
        "  lr: optimization.LrConfig = {}\n"
        "  size: int = 3\n"
        "  other: B = make()\n"
    )
    call = 'optimization.LrConfig(\n      type="cosine")'
    rewritten = base_classes.rewrite(cst.parse_module(head + text.format(call))).code
    assert f"= dataclasses.field(default_factory=lambda: {call})\n  size: int = 3\n" in rewritten
    assert "other: B = make()" in rewritten
    assert base_classes.rewrite(cst.parse_module(rewritten)).code == rewritten


@pytest.mark.parametrize(
    "text",
    [
        "class A(B):\n  pass",
        "from official_lite import keras2\nclass A(keras2.Keras2Habits, keras.Model):\n  pass",
        "class A(keras.metrics.Metric):\n  pass",
        "class A(keras.optimizers.Adam):\n  def update_step(self, g, v, learning_rate): pass",
        "x = layers.Dense(3)",
        "def f(layers):\n  return layers.MultiHeadAttention",
    ],
)
def test_others_are_left_alone(text: str) -> None:
    module = cst.parse_module(HEAD + text)
    assert base_classes.rewrite(module).code == module.code
