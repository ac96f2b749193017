"""Functions for both Keras and TensorFlow variables, and for the names that Keras generates.

Keras numbers unnamed layers, metrics and optimizers across the whole process: `dense` in the first
model, `dense_1` in the next one. The names that a run writes, or that its config selects, must not
depend on what the process has built before.
"""

import collections
import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from tensorflow.python.framework import auto_control_deps_utils


def path_of(variable: keras.Variable | tf.Variable) -> str:
    """Return the path of a Keras variable, or the name of a TensorFlow variable."""
    return str(getattr(variable, "path", None) or variable.name)


def raw(variable: keras.Variable | tf.Variable) -> tf.Variable:
    """Return the TensorFlow variable of a Keras variable, or any other variable unchanged."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def local_values(variable: keras.Variable | tf.Variable) -> Sequence[tf.Variable]:
    """Return this worker's copies of a variable, one for each replica."""
    value = raw(variable)
    values: Sequence[tf.Variable] = getattr(value, "values", (value,))
    return values


def variables_of(part: object) -> Iterator[Any]:
    """Yield all variables below a layer, a trackable object, a list or a mapping."""
    for one in parts_of(part):
        if isinstance(one, keras.Layer):
            # `weights` includes layers in lists, which the traversal below does not reach.
            yield from one.weights
            continue
        found: dict[int, Any] = {}
        for node in tf.train.TrackableView(one).descendants():
            if is_variable(node):
                found[id(node)] = node
            elif isinstance(node, keras.Layer):
                found |= {id(weight): weight for weight in node.weights}
        yield from found.values()


def parts_of(value: object) -> Iterator[Any]:
    """Yield the elements of nested containers, at any depth; yield any other value unchanged."""
    if isinstance(value, Mapping):
        value = [*value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        for part in value:
            yield from parts_of(part)
    else:
        yield value


def is_variable(trackable: object) -> bool:
    return isinstance(trackable, keras.Variable | tf.Variable)


def recurrent_states(layer: keras.Layer) -> list[keras.Variable]:
    """Return the states that recurrent layers with `stateful=True` carry from batch to batch.

    Neither Keras nor TensorFlow tracks them: `layer.variables` does not contain them.
    """
    layers = (one for one in layer._flatten_layers() if isinstance(one, keras.layers.RNN))
    states = [state for one in layers if one.states for state in keras.tree.flatten(one.states)]
    return list({id(state): state for state in states}.values())


def is_training_call(arguments: Mapping[str, Any]) -> bool:
    """Return whether the running `call` of a layer is in training mode.

    `stateless_call`, and user code that calls `call` itself, pass `training` as an argument and
    create no call context.

    Args:
        arguments: The keyword arguments of `call`.
    """
    if (training := arguments.get("training")) is not None:
        return bool(training)
    context = global_state.get_global_attribute("current_call_ctx")
    return context is not None and bool(context.get_value("training"))


def name_of_call(layer: keras.Layer) -> str:
    """Return the name of the method that runs a layer; quantized layers do not run `call`."""
    return "call" if layer.quantization_mode is None else "quantized_call"


@contextlib.contextmanager
def replacing_call(layer: keras.Layer, call: Callable[..., Any]) -> Iterator[None]:
    """Replace the method that runs a layer (see `name_of_call`) within the context.

    On exit, any function that was assigned to this attribute of the layer before, by the user or to
    recompute activations, is restored.
    """
    # Bypass Keras' `__setattr__`, which would track the function.
    attributes = vars(layer)
    name = name_of_call(layer)
    own = attributes.get(name)
    attributes[name] = call
    try:
        yield
    finally:
        if own is None:
            del attributes[name]
        else:
            attributes[name] = own


def tensors_of_call(
    signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Any]:
    """Return the arguments of a model call that contain tensors, except for masks."""
    given = signature.bind(*args, **kwargs).arguments
    return [
        value
        for name, value in given.items()
        if name not in ("training", "mask") and any(map(tf.is_tensor, keras.tree.flatten(value)))
    ]


def written_handles(graph: tf.__internal__.FuncGraph) -> list[tf.Tensor]:
    """Return the handles of the variables that a function may write.

    Args:
        graph: The graph of the function, which may still be under construction.
    """
    written: set[str] = set()
    for operation in graph.get_operations():
        _, handles = auto_control_deps_utils.get_read_write_resource_inputs(operation)
        written.update(handle.name for handle in handles)
    return [outside for outside, inside in graph.captures if inside.name in written]


def value_spec(handle: tf.Tensor) -> tf.TensorSpec | None:
    """Return the spec of a variable's value; None if the resource is not a variable."""
    data = getattr(handle, "_handle_data", None)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    (value,) = data.shape_and_type
    return tf.TensorSpec(tf.TensorShape(value.shape), tf.as_dtype(value.dtype))


Built = TypeVar("Built")

# The key under which Keras stores how many objects it has named, by class in snake case.
_COUNTERS = "object_name_uids"


def name_counts() -> Mapping[str, int]:
    """Return the number of objects that Keras has named, by class in snake case."""
    return dict(global_state.get_global_attribute(_COUNTERS) or {})


@contextlib.contextmanager
def fresh_names() -> Iterator[None]:
    """Let Keras count objects without a name from zero, as in a new process.

    Afterwards, the counts continue above all numbers used so far, so that layers that are added to
    a model later have different names.
    """
    before = name_counts()
    _set_counts({})
    try:
        yield
    finally:
        within = name_counts()
        names = before.keys() | within.keys()
        _set_counts({name: max(before.get(name, 0), within.get(name, 0)) for name in names})


def build_with_fresh_names(build: Callable[[], Built]) -> Built:
    """Return the result of `build`, with the names that Keras gives its objects in a new process.

    If `build` extends an existing model, a name may occur twice, which Keras rejects. `build` is
    then called again, with the names that Keras gives in this process.

    Args:
        build: Builds a model or an optimizer. A call that fails must have no lasting effects.
    """
    is_new = not name_counts()
    try:
        with fresh_names():
            return build()
    except ValueError:
        if is_new:
            raise
    return build()


def _set_counts(numbers: Mapping[str, int]) -> None:
    global_state.set_global_attribute(_COUNTERS, collections.defaultdict(int, numbers))
