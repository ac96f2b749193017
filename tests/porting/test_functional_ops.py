import textwrap
from collections.abc import Iterator
from typing import Any

import keras
import libcst as cst
import numpy as np
import pytest
import tensorflow as tf

from official_lite.porting import functional_ops
from official_lite.porting.functional_ops import SymbolicTensors
from official_lite.porting.syntax import Bindings


def _module(body: str) -> cst.Module:
    head = "import keras\nimport tensorflow as tf\n\n\ndef build():\n  x = keras.Input((3,))\n"
    return cst.parse_module(head + textwrap.indent(body, "  ") + "\n")


OPS = {
    "tf.concat([x, 2 * x], -1)": "keras.ops.concatenate([x, 2 * x], -1)",
    "tf.reduce_mean(input_tensor=x, axis=1)": "keras.ops.mean(x=x, axis=1)",
    "tf.nn.relu(x, name='act')": "keras.ops.relu(x)",
    "tf.identity(x)": "keras.layers.Identity(autocast=False)(x)",
    "tf.identity(x, name='a/b')": "keras.layers.Identity(name='a_b', autocast=False)(x)",
    "tf.cast(tf.math.square(x), y)": "keras.ops.cast(keras.ops.square(x), y)",
}


def test_tensorflow_functions_on_symbolic_tensors_become_keras_ops() -> None:
    expected = {old: _module(new).code for old, new in OPS.items()}
    assert {old: functional_ops.rewrite(_module(old)).code for old in OPS} == expected


def test_keras2_is_imported_for_a_function_that_keras_ops_lacks() -> None:
    module = _module("y = [x]\nz = tf.matmul(y[0], y[0], transpose_b=True)")
    expected = f"from official_lite import keras2\n{module.code}"
    assert functional_ops.rewrite(module).code == expected


KEPT = [
    "tf.reshape(x, [tf.shape(x)[0], -1])",
    "tf.tile(x, multiples=[1, tf.shape(x)[0]])",
    "tf.broadcast_to(x, tf.shape(y))",
    "tf.clip_by_value(x, 0.0, y)",
    "tf.where(x > 0)",
    "tf.math.l2_normalize(x)",
    "tf.add_n([x, y])",
]


def test_functions_without_the_same_result_in_keras_ops_are_kept() -> None:
    wanted = {old: _module(f"y = 2 * x\nz = {old}").code for old in KEPT}
    kept = {old: functional_ops.rewrite(cst.parse_module(code)) for old, code in wanted.items()}
    assert {old: module.code.partition("\n")[2] for old, module in kept.items()} == wanted


def _built(code: str) -> keras.Model:
    scope: dict[str, Any] = {}
    exec(functional_ops.rewrite(cst.parse_module(code)).code, scope)
    return scope["build"]()


@pytest.fixture
def mixed_precision() -> Iterator[None]:
    keras.mixed_precision.set_global_policy("mixed_float16")
    yield
    keras.mixed_precision.set_global_policy("float32")


@pytest.mark.usefixtures("mixed_precision")
@pytest.mark.parametrize("function", ["tf.identity(y, name='logits')", "tf.add_n([y, y]) / 2"])
def test_ported_functions_keep_float32_under_mixed_precision(function: str) -> None:
    code = _module(f"y = tf.cast(x, tf.float32)\nreturn keras.Model(x, {function})").code
    result = _built(code)(tf.constant([[1e6, 1.0, 1.0001]]))
    assert result.dtype == "float32"
    assert result.numpy().tolist() == np.float32([[1e6, 1.0, 1.0001]]).tolist()


def test_ported_reshape_to_a_dynamic_size_works() -> None:
    code = _module("return keras.Model(x, tf.reshape(x, [tf.shape(x)[0], -1, 1]))").code
    assert _built(code)(tf.ones([2, 3])).shape == (2, 3, 1)


def test_tensorflow_functions_on_non_symbolic_values_are_not_rewritten() -> None:
    module = _module("a = tf.constant(x.shape[-1])\nb = tf.cast(a, tf.float32)\ntf.nest.flatten(x)")
    assert functional_ops.rewrite(module).code == module.code


def test_add_loss_and_add_metric_of_a_model_become_keras2_functions() -> None:
    before = _module("m = keras.Model(x, x)\nm.add_loss(2 * x)\nm.add_metric(x, name='n')")
    after = functional_ops.rewrite(before)
    wanted = _module(
        "m = keras.Model(x, x)\nkeras2.add_loss(m, 2 * x)\nkeras2.add_metric(m, x, name='n')"
    )
    assert after.code == f"from official_lite import keras2\n{wanted.code}"
    assert functional_ops.rewrite(after).code == after.code


TEXT = """
import keras

class Net(keras.Model):
  def __init__(self, size):
    inputs = keras.layers.Input((size,))
    x = self._stem(inputs, size)
    outputs = {}
    for level in range(3):
      outputs[level] = head(level, features=x)
    width = inputs.shape[-1]
    super().__init__(inputs, outputs)

  def _stem(self, x, size):
    y = x * 2
    return y, size

  def call(self, x):
    return x

def head(level, features):
  parts = [features]
  return parts
"""


def test_symbolic_tensors_are_tracked_through_function_calls() -> None:
    module = cst.parse_module(TEXT)
    bindings = Bindings()
    module.visit(bindings)
    tensors = SymbolicTensors(module, bindings)
    functions = {}

    class Collect(cst.CSTVisitor):
        def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
            functions[node.name.value] = tensors.names_in(node)

    module.visit(Collect())
    assert functions == {
        "__init__": {"inputs", "x", "outputs"},
        "_stem": {"x", "y"},
        "call": set(),
        "head": {"features", "parts"},
    }
