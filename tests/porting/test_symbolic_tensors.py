import libcst as cst

from official_lite.porting.bindings import Bindings
from official_lite.porting.symbolic_tensors import SymbolicTensors

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


def test_symbolic_tensors_are_followed_into_what_is_called() -> None:
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
