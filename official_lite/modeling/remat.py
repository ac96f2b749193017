"""Rematerialization: activations that the backward pass recomputes instead of keeping in memory.

The method is gradient checkpointing: "Training Deep Nets with Sublinear Memory Cost" (Chen et al.,
2016). `keras.RematScope` has the same purpose, but it raises an error inside a `tf.function`.
"""

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging
from keras.src.backend.common import stateless_scope
from tensorflow.python.ops import control_flow_util

from official_lite.common import errors, keras_variables, nests, suggestions

__all__ = ["rematerialize"]


def rematerialize(
    model: keras.Model | tf.Module, patterns: Sequence[str], *, lazy_rows: bool = False
) -> None:
    """Make layers forget their activations in training and recompute them in the backward pass.

    Only the inputs of a matched layer are kept between the two passes. If a layer and a layer
    inside it both match, the outer layer is recomputed as a whole. The recomputed pass draws the
    same random numbers as the first pass, and it updates no state, such as the statistics of batch
    normalization.

    Args:
        model: A built Keras model.
        patterns: Regular expressions, searched for anywhere in the path of a layer.
        lazy_rows: Whether the optimizer updates only the rows of a table that a step looks up. The
            recomputation makes the gradient of a table dense, which would update all rows, so
            training raises a `ConfigValueError` if a matched layer looks up rows of a weight.

    Raises:
        errors.ConfigValueError: A pattern matches no layer, the model is not a Keras model, or the
            strategy is a `ParameterServerStrategy`.
    """
    if not patterns:
        return
    if isinstance(tf.distribute.get_strategy(), tf.distribute.ParameterServerStrategy):
        raise errors.ConfigValueError(
            f"`trainer.remat` is {list(patterns)}, but the strategy `parameter_server` does not "
            "support this field. Use `mirrored` or `multi_worker_mirrored`, or set `trainer.remat` "
            "to []."
        )
    if not isinstance(model, keras.Model):
        raise errors.ConfigValueError(
            "`trainer.remat` supports only Keras models, but the task's model is a "
            f"{type(model).__name__}. Set `trainer.remat` to []."
        )
    layers = _outermost(
        {id(layer): layer for pattern in patterns for layer in _matching(model, pattern)}
    )
    for layer in layers:
        # Write to `__dict__` to bypass Keras' `__setattr__`, which would track the value.
        name = keras_variables.name_of_call(layer)
        layer.__dict__[name] = _recomputed(layer, getattr(layer, name), lazy_rows)
    names = ", ".join(_path_of(layer) for layer in layers)
    logging.info("The backward pass recomputes the activations of %s.", names)


def _matching(model: keras.Model, pattern: str) -> list[keras.Layer]:
    layers = [
        layer
        for layer in model._flatten_layers(include_self=False)
        if not isinstance(layer, keras.layers.InputLayer)
    ]
    found = [layer for layer in layers if re.search(pattern, _path_of(layer))]
    if not found:
        paths = [_path_of(layer) for layer in layers]
        raise errors.ConfigValueError(
            f"`trainer.remat` has {pattern!r}, which matches no layer. "
            f"{suggestions.did_you_mean(pattern, paths)}"
        )
    return found


def _path_of(layer: keras.Layer) -> str:
    # A layer that has not been built yet, such as dropout, has no path.
    return layer.path or layer.name


def _outermost(layers: dict[int, keras.Layer]) -> list[keras.Layer]:
    inner = {
        id(child)
        for layer in layers.values()
        for child in layer._flatten_layers(include_self=False)
    }
    return [layer for key, layer in layers.items() if key not in inner]


def _recomputed(
    layer: keras.Layer, call: Callable[..., Any], lazy_rows: bool
) -> Callable[..., Any]:
    """Return a replacement for the layer's `call` that stores no activations in training."""
    # The `quantized_call` of a quantized layer gets the arguments of `call`.
    takes_training = "training" in inspect.signature(layer.call).parameters

    @functools.wraps(call)
    def recomputed_call(*args: Any, **kwargs: Any) -> Any:
        structure = (args, kwargs)
        flat = tf.nest.flatten(structure)
        # A symbolic call only determines shapes and computes nothing.
        is_symbolic = stateless_scope.in_stateless_scope() or any(
            isinstance(value, keras.KerasTensor) for value in flat
        )
        # A direct call of `call` without `training` runs the layer in its default mode.
        is_default_mode = takes_training and "training" not in kwargs
        if is_symbolic or is_default_mode or not keras_variables.is_training_call(kwargs):
            return call(*args, **kwargs)
        return _Call(layer, call, structure, lazy_rows).run()

    return recomputed_call


class _Call:
    """One call of a layer in training: the first pass, and the recomputation with gradients.

    The first pass uses the variables of the layer as usual. The recomputation runs in a
    `StatelessScope`, which provides their values from before the first pass and discards updates.

    Args:
        layer: The layer.
        call: The layer's original `call`.
        structure: The positional and the keyword arguments of the call.
        lazy_rows: Whether to refuse a sparse gradient instead of making it dense.
    """

    def __init__(
        self,
        layer: keras.Layer,
        call: Callable[..., Any],
        structure: nests.Nest,
        lazy_rows: bool,
    ) -> None:
        self._layer = layer
        self._call = call
        self._lazy_rows = lazy_rows
        self._structure = structure
        self._flat = tf.nest.flatten(structure, expand_composites=True)
        self._places = [i for i, value in enumerate(self._flat) if _is_float(value)]
        self._masks = [getattr(value, "_keras_mask", None) for value in self._flat]
        self._weights = [v for v in layer.variables if v.trainable]
        self._states = [v for v in layer.variables if not v.trainable]
        self._states += keras_variables.recurrent_states(layer)

    def run(self) -> Any:
        """Return the outputs of the layer."""
        inputs = [self._flat[place] for place in self._places]
        weights = [_uncast(variable) for variable in self._weights]
        states = [_uncast(variable) for variable in self._states]
        outputs: Any = None
        masks: list[Any] = []

        @tf.custom_gradient
        def differentiable(*values: tf.Tensor) -> Any:
            nonlocal outputs, masks
            outputs = self._first_pass(values[: len(inputs)])
            flat = nests.tensors_in(outputs)
            masks = [getattr(output, "_keras_mask", None) for output in flat]

            def gradient(*upstream: tf.Tensor, variables: Sequence[Any] | None = None) -> Any:
                gradients = self._gradients(values, states, upstream)
                # The gradients of the weights are already in `gradients`, because the weights are
                # arguments, so return None for their variables.
                return (gradients, [None] * len(variables)) if variables else gradients

            return tuple(flat), gradient

        results = differentiable(*inputs, *weights)
        for result, mask in zip(results, masks, strict=True):
            if mask is not None:
                result._keras_mask = mask
        # `results` contains only tensors. Put them back among the other outputs of the layer, such
        # as None or Python values, which have no gradients.
        rest = iter(results)
        flat = tf.nest.flatten(outputs, expand_composites=True)
        flat = [next(rest) if tf.is_tensor(value) else value for value in flat]
        return tf.nest.pack_sequence_as(outputs, flat, expand_composites=True)

    def _first_pass(self, inputs: Sequence[tf.Tensor]) -> Any:
        num_losses = len(self._layer.losses)
        args, kwargs = self._arguments(inputs)
        outputs = self._call(*args, **kwargs)
        if len(self._layer.losses) != num_losses:
            raise errors.ConfigValueError(
                f"`trainer.remat` matches {_path_of(self._layer)!r}, which calls `add_loss` or "
                "contains a layer with an `activity_regularizer`. Such a loss would lose its "
                "gradient in the recomputation. Use patterns that match smaller layers inside this "
                "layer, but not the layer itself."
            )
        return outputs

    def _arguments(self, inputs: Sequence[tf.Tensor]) -> Any:
        """Return the call's arguments with `inputs` in place of float tensors; masks are kept."""
        flat = list(self._flat)
        for place, value in zip(self._places, inputs, strict=True):
            flat[place] = value
            if self._masks[place] is not None:
                value._keras_mask = self._masks[place]
        return tf.nest.pack_sequence_as(self._structure, flat, expand_composites=True)

    def _gradients(
        self,
        values: Sequence[tf.Tensor],
        states: Sequence[tf.Tensor],
        upstream: Sequence[tf.Tensor],
    ) -> list[tf.Tensor | None]:
        """Return the gradients of `values` (inputs, then weights), or None for an unused value.

        A gradient of zero would be wrong for an unused weight, because optimizers skip a weight
        only if it has no gradient. With a zero gradient, weight decay would move it.
        """
        upstream = [value for value in upstream if _is_float(value)]
        graph = tf.compat.v1.get_default_graph()
        if not tf.executing_eagerly() and control_flow_util.GraphOrParentsInXlaContext(graph):
            return self._gradients_in_xla(values, states, upstream)
        # The dependency prevents TensorFlow from recomputing right after the first pass and from
        # merging the two passes.
        with tf.control_dependencies(upstream):
            values, states = ([tf.identity(v) for v in part] for part in (values, states))
        return self._recompute(values, states, upstream)[0]

    def _gradients_in_xla(
        self,
        values: Sequence[tf.Tensor],
        states: Sequence[tf.Tensor],
        upstream: Sequence[tf.Tensor],
    ) -> list[tf.Tensor | None]:
        """Return the gradients like `_gradients`, but recompute in a loop of one iteration.

        XLA ignores control dependencies and would merge the recomputation with the forward pass,
        because the two are identical. XLA does not merge across a loop boundary, but it removes a
        loop if it can tell that there is only one iteration. The number of iterations therefore
        depends on whether a hyperbolic tangent exceeds 2: XLA can't infer that the function is at
        most 1. XLA can't move the recomputation out of the loop either, because each iteration
        replaces all loop variables: `values` by gradients, and `states` by new states.
        """
        sample = tf.reshape(tf.cast(upstream[0], tf.float32), [-1])[:1]
        count = tf.where(tf.reduce_any(tf.tanh(sample) > 2.0), 0, 1)
        is_used: list[bool] = []

        def iterate(index: tf.Tensor, *carried: tf.Tensor) -> tuple[tf.Tensor, ...]:
            gradients, new_states = self._recompute(
                carried[: len(values)], carried[len(values) :], upstream
            )
            # Tracing the loop already determines which gradients are None.
            is_used[:] = [gradient is not None for gradient in gradients]
            # A `tf.while_loop` can't carry None.
            dense = [
                tf.zeros_like(value) if gradient is None else gradient
                for gradient, value in zip(gradients, carried, strict=False)
            ]
            return (index + 1, *dense, *new_states)

        _, *results = tf.while_loop(
            lambda index, *_: index < count,
            iterate,
            (tf.constant(0), *values, *states),
            parallel_iterations=1,
        )
        gradients = results[: len(values)]
        return [g if used else None for g, used in zip(gradients, is_used, strict=True)]

    def _recompute(
        self,
        values: Sequence[tf.Tensor],
        states: Sequence[tf.Tensor],
        upstream: Sequence[tf.Tensor],
    ) -> tuple[list[tf.Tensor | None], list[tf.Tensor]]:
        """Return the gradients for `values`, and the states after the recomputed pass.

        The gradient of a value that the pass does not use is None.
        """
        inputs, weights = values[: len(self._places)], values[len(self._places) :]
        pairs = [*zip(self._weights, weights, strict=True), *zip(self._states, states, strict=True)]
        with tf.GradientTape() as tape:
            tape.watch(list(values))
            args, kwargs = self._arguments(inputs)
            with keras.StatelessScope(pairs, collect_losses=True) as scope:
                # Unlike `call`, `__call__` restores the training mode and the precision of
                # sublayers. It calls the replacement of `call`, which runs the original here,
                # because this is a stateless scope.
                outputs = self._layer(*args, **{**kwargs, "training": True})
        gradients = tape.gradient(
            [output for output in nests.tensors_in(outputs) if _is_float(output)],
            list(values),
            output_gradients=list(upstream),
        )
        # Only weights must keep sparse gradients. The sparse gradient of an input may become dense.
        if self._lazy_rows:
            of_weights = zip(gradients[len(inputs) :], self._weights, strict=True)
            self._refuse_rows([v for g, v in of_weights if isinstance(g, tf.IndexedSlices)])
        dense = [
            None
            if gradient is None
            else tf.ensure_shape(tf.convert_to_tensor(gradient), value.shape)
            for gradient, value in zip(gradients, values, strict=True)
        ]
        return dense, [scope.get_current_value(variable) for variable in self._states]

    def _refuse_rows(self, tables: Sequence[keras.Variable]) -> None:
        if tables:
            raise errors.ConfigValueError(
                f"`trainer.remat` matches {_path_of(self._layer)!r}, which looks up rows of "
                f"{', '.join(map(keras_variables.path_of, tables))}, and the optimizer has "
                "`lazy_rows`. The recomputation makes the gradient of a table dense, so the update "
                "would change all rows. Use patterns that match no layer with a table, or set "
                "`lazy_rows` to false."
            )


def _is_float(value: object) -> bool:
    return tf.is_tensor(value) and value.dtype.is_floating  # type: ignore[attr-defined]


def _uncast(variable: keras.Variable) -> tf.Tensor:
    """Return the value of a variable in its own precision.

    The public `value` has the precision of the layer that is being called, but a sublayer may need
    another precision.
    """
    return tf.convert_to_tensor(variable._value)
