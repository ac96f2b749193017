"""Optimizers that sum gradients over replicas before they clip them, and losses that fit them."""

import contextlib
import contextvars
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf
from absl import logging
from keras.src.losses import loss as keras_loss
from tensorflow.python.ops import control_flow_util

from official_lite.common import errors, keras_variables
from official_lite.modeling import update_steps

__all__ = [
    "are_wanted",
    "sum_equal_rows",
    "DistributedLossScaleOptimizer",
    "DistributedOptimizer",
    "GradientTransformer",
    "gradients_already_summed",
    "has_lazy_rows",
    "innermost_optimizers",
    "make_distributed",
    "observe_gradients",
    "sum_over_replicas",
    "undivided_losses",
    "updates_rows",
    "wrapped_optimizers",
]

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices
GradsAndVars: TypeAlias = Sequence[tuple[Gradient | None, keras.Variable]]

_loss_scaling = threading.local()


def are_wanted() -> bool:
    """Return whether the function being traced should update individual rows.

    XLA programs should not. XLA does not know the number of distinct rows, so it would process as
    many rows as there are look-ups, one after the other.
    """
    in_xla: bool = control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
    return not in_xla


def sum_equal_rows(gradient: Gradient) -> Gradient:
    """Return the gradient with each row at most once; a dense gradient is returned unchanged."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


GradientTransformer = Callable[[list[tuple[Any, Any]]], Iterable[tuple[Any, Any]]]

# A context variable is set per thread, and each replica of a `MirroredStrategy` has its own thread.
_already_summed = contextvars.ContextVar("already_summed", default=False)


def make_distributed(
    optimizer: keras.optimizers.Optimizer, *, lazy_rows: bool = False
) -> keras.optimizers.Optimizer:
    """Make `optimizer` sum gradients over replicas before any other processing, and return it.

    The optimizer remains the same object and keeps its variables and its class name. Its class
    becomes a subclass of its original class and of `DistributedOptimizer`. Wrapped optimizers are
    converted too. Calling this function twice has no further effect.

    Args:
        optimizer: Any Keras optimizer.
        lazy_rows: Whether an update of an embedding table skips all rows that the step did not look
            up, including their moments and weight decay. The cost of a step then does not depend on
            the size of the table, but the results differ from those of the dense update. See
            docs/embeddings.md.

    Raises:
        ConfigValueError: `lazy_rows` is set, but the optimizer cannot update individual rows.
    """
    inner = getattr(optimizer, "inner_optimizer", None)
    # `keras.optimizers.MultiOptimizer` assigns a subset of the variables to each of its optimizers.
    for wrapped in [*getattr(optimizer, "optimizers", ()), *([] if inner is None else [inner])]:
        make_distributed(wrapped)
    if not isinstance(optimizer, DistributedOptimizer):
        optimizer_cls: Any = type(optimizer)
        optimizer.__class__ = _distributed_class(optimizer_cls)
    if lazy_rows:
        for one in innermost_optimizers(optimizer):
            _make_lazy(one)
    return optimizer


def _make_lazy(optimizer: keras.optimizers.Optimizer) -> None:
    if not isinstance(optimizer, update_steps.RowUpdate):
        raise errors.ConfigValueError(
            "`lazy_rows` supports Adam, AdamW, SGD, RMSprop and Adagrad, but not "
            f"{type(optimizer).__name__}, which updates whole tables."
        )
    # Bypass `__setattr__`, which would track the value for saving.
    optimizer.__dict__["lazy_rows"] = True


def wrapped_optimizers(
    optimizer: keras.optimizers.Optimizer | None,
) -> Iterator[keras.optimizers.Optimizer]:
    """Yield the optimizer, then each nested `inner_optimizer`, from the outside in."""
    while optimizer is not None:
        yield optimizer
        optimizer = getattr(optimizer, "inner_optimizer", None)


def observe_gradients(
    optimizer: keras.optimizers.Optimizer, observer: Callable[[GradsAndVars], None]
) -> None:
    """Call `observer` with the (gradient, variable) pairs of each update, in every replica.

    The gradients are summed over replicas, not yet transformed or clipped, and never None. The
    gradient of a table whose rows are updated individually is a `tf.IndexedSlices` in which each
    row occurs once. The observer is not called for optimizers that are not a
    `DistributedOptimizer`.
    """
    for one in innermost_optimizers(optimizer):
        if isinstance(one, DistributedOptimizer):
            # Bypass `__setattr__`, which would track the value for saving.
            one.__dict__["gradient_observer"] = observer


def updates_rows(optimizer: keras.optimizers.Optimizer) -> bool:
    """Return whether an update of a table can leave rows without a gradient unchanged."""
    return any(getattr(one, "leaves_other_rows", False) for one in innermost_optimizers(optimizer))


def has_lazy_rows(optimizer: keras.optimizers.Optimizer) -> bool:
    """Return whether `lazy_rows` is set, so that rows the optimizer would move stay unchanged."""
    return any(getattr(one, "lazy_rows", False) for one in innermost_optimizers(optimizer))


def innermost_optimizers(optimizer: keras.optimizers.Optimizer) -> Iterable[Any]:
    """Return the optimizers that change the variables."""
    *_, innermost = wrapped_optimizers(optimizer)
    optimizers: Iterable[Any] = getattr(innermost, "optimizers", [innermost])
    return optimizers


@contextlib.contextmanager
def gradients_already_summed() -> Iterator[None]:
    """Make optimizers in this thread treat gradients as already summed, within the block."""
    token = _already_summed.set(True)
    try:
        yield
    finally:
        _already_summed.reset(token)


def sum_over_replicas(gradients: Sequence[Any]) -> list[tf.Tensor]:
    """Return the dense sum of each gradient over all replicas, on each replica.

    Sparse gradients are transferred sparse and made dense on arrival.

    Raises:
        RuntimeError: The function was called outside `strategy.run`.
    """
    return [tf.convert_to_tensor(gradient) for gradient in _all_reduce(gradients)]


def _all_reduce(gradients: Sequence[Any]) -> list[Any]:
    context = tf.distribute.get_replica_context()
    if context is None:
        raise RuntimeError(
            "Gradients were applied outside a replica context. Call `apply_gradients` in the "
            "function passed to `strategy.run`."
        )
    summed = list(gradients)
    if context.num_replicas_in_sync > 1 and summed:
        summed = context.all_reduce(tf.distribute.ReduceOp.SUM, summed)
    return summed


class DistributedOptimizer(update_steps.OptimizerHalf):
    """Mixin that makes a Keras optimizer sum over replicas, then clip, then apply.

    List the mixin before the Keras optimizer class among the base classes.

    A variable without a gradient is skipped, with one warning that names it. An update in which no
    variable has a gradient raises `ConfigValueError`, a `ValueError` as in Keras.

    Attributes:
        gradient_aggregator: Takes the (gradient, variable) pairs of this replica and returns the
            pairs summed over all replicas. None uses an all-reduce.
        gradient_transformers: Functions applied to the pairs in order, after the sum and before
            clipping.
        gradient_observer: Called with the pairs after the sum; see `observe_gradients`.
    """

    gradient_observer: Callable[[Sequence[tuple[Any, Any]]], None] | None = None

    gradient_aggregator: GradientTransformer | None = None
    gradient_transformers: Sequence[GradientTransformer] = ()

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
        skip_gradients_aggregation: bool = False,
    ) -> Any:
        """Update the variables; call this in a replica.

        Args:
            grads_and_vars: Pairs of a gradient, which may be None, and its variable.
            name: Ignored; accepted for callers written for Keras 2.
            experimental_aggregate_gradients: False if the gradients are already summed over all
                replicas.
            skip_gradients_aggregation: The inverse of `experimental_aggregate_gradients`, under its
                newer name.

        Returns:
            `iterations`.
        """
        pairs = list(grads_and_vars)
        gradients, variables = [g for g, _ in pairs], [v for _, v in pairs]
        with contextlib.ExitStack() as stack:
            if skip_gradients_aggregation or not experimental_aggregate_gradients:
                stack.enter_context(gradients_already_summed())
            self.apply(gradients, variables)
        return self.iterations

    def set_gradient_functions(
        self,
        gradient_aggregator: GradientTransformer | None,
        gradient_transformers: Sequence[GradientTransformer],
    ) -> None:
        """Set `gradient_aggregator` and `gradient_transformers`."""
        # Bypass `__setattr__`, which would track the values for saving.
        self.__dict__["gradient_aggregator"] = gradient_aggregator
        self.__dict__["gradient_transformers"] = tuple(gradient_transformers)

    def sum_gradients(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the gradients summed over replicas, unless they already are. None stays None.

        Sparse gradients may remain sparse.
        """
        if _already_summed.get():
            return list(gradients)
        pairs = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
        if self.gradient_aggregator is not None:
            summed = iter([gradient for gradient, _ in self.gradient_aggregator(pairs)])
        else:
            summed = iter(_all_reduce([gradient for gradient, _ in pairs]))
        return [None if gradient is None else next(summed) for gradient in gradients]

    # The methods below override steps of Keras' `apply`, in the order in which it calls them.

    def _filter_empty_gradients(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        pairs = list(zip(grads, trainable_variables, strict=True))
        present = [(g, v) for g, v in pairs if g is not None]
        missing = [keras_variables.path_of(v) for g, v in pairs if g is None]
        if missing and not present:
            raise errors.ConfigValueError(
                f"No gradients provided for any variable: {', '.join(missing)}. Make sure that the "
                "loss depends on them and is computed under the gradient tape, from tensors."
            )
        self._warn_of_missing(missing)
        gradients = [g for g, _ in present]
        if self.loss_scale_factor is not None:
            # Keras divides the gradients by the scale, which sparse gradients do not support.
            gradients = self._make_dense(gradients, "the loss is scaled")
        return gradients, [v for _, v in present]

    def _warn_of_missing(self, names: Sequence[str]) -> None:
        # Bypass `__setattr__`, which would track the set for saving. A step is traced more than
        # once and on every replica; the set prevents repeated warnings.
        warned: set[str] = self.__dict__.setdefault("_warned_of_missing", set())
        if set(names) - warned:
            logging.warning(
                "The variables %s have no gradients and are not updated, because the loss does "
                "not depend on them.",
                ", ".join(names),
            )
            warned.update(names)

    def _backend_apply_gradients(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any]
    ) -> None:
        summed = self.sum_gradients(grads, trainable_variables)
        if reason := self._why_not_rows():
            summed = self._make_dense(summed, reason)
        summed = [sum_equal_rows(gradient) for gradient in summed]
        pairs = list(zip(summed, trainable_variables, strict=True))
        if self.gradient_observer is not None:
            self.gradient_observer(pairs)
        for transformer in self.gradient_transformers:
            pairs = list(transformer(pairs))
        super()._backend_apply_gradients(
            [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        )

    def _why_not_rows(self) -> str | None:
        """Return why sparse gradients must become dense, or None if they may stay sparse."""
        if not getattr(self, "leaves_other_rows", False):
            return "the optimizer changes all rows"
        if self.gradient_transformers:
            return "there are gradient transformers"
        if self.gradient_accumulation_steps:
            return "the optimizer has `gradient_accumulation_steps`"
        if not are_wanted():
            return "XLA compiles the update (use `runtime.execution=graph` instead)"
        return None

    def _make_dense(self, gradients: Sequence[Any], reason: str) -> list[Any]:
        """Return dense gradients; raise if a dense update would contradict `lazy_rows`."""
        is_sparse = any(isinstance(gradient, tf.IndexedSlices) for gradient in gradients)
        if is_sparse and has_lazy_rows(self):
            raise errors.ConfigValueError(
                f"The optimizer has `lazy_rows`, but can't update rows of a table: {reason}."
            )
        return [None if g is None else tf.convert_to_tensor(g) for g in gradients]

    def _clip_gradients(self, grads: Sequence[Any]) -> list[Any]:
        # Rows missing from a sparse gradient are zero and contribute nothing to a norm.
        values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in grads]
        clipped = super()._clip_gradients(values)
        return [
            tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
            if isinstance(gradient, tf.IndexedSlices)
            else values
            for values, gradient in zip(clipped, grads, strict=True)
        ]

    def _backend_update_step(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any], learning_rate: tf.Tensor
    ) -> None:
        # Convert to a tensor, so that the rate is not read once per variable.
        rate = tf.convert_to_tensor(learning_rate)
        super()._backend_update_step(grads, trainable_variables, rate)

    def _all_reduce_sum_gradients(self, grads_and_vars: GradsAndVars) -> GradsAndVars:
        return grads_and_vars


class DistributedLossScaleOptimizer(DistributedOptimizer):
    """Mixin for `keras.optimizers.LossScaleOptimizer` that checks summed gradients for overflow.

    List the mixin before the Keras class among the base classes. Keras looks for overflows before
    summing, and uses the result of the first replica for all replicas. The class also provides the
    methods of Keras 2, so that train steps written for Keras 2 keep working.
    """

    def get_scaled_loss(self, loss: tf.Tensor) -> tf.Tensor:
        """Return the loss times the scale; the Keras 2 name of `scale_loss`."""
        return self.scale_loss(loss)

    def get_unscaled_gradients(self, grads: Sequence[Any]) -> list[Any]:
        """Return the gradients unchanged, because `apply_gradients` divides them by the scale."""
        return list(grads)

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Skip the update and halve the scale if a summed gradient is infinite or NaN."""
        variables = list(trainable_variables or self._trainable_variables)
        *_, innermost = wrapped_optimizers(self)
        summed = innermost.sum_gradients(grads, variables)
        super().apply(self._make_dense(summed, "the loss is scaled"), variables)

    def _stateful_handle_finite_grads(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any]
    ) -> None:
        # Set the flag here, because Keras may call this method in separate threads.
        with gradients_already_summed():
            super()._stateful_handle_finite_grads(grads, trainable_variables)
        self._bound_scale()

    def _stateful_handle_non_finite_grads(self) -> None:
        super()._stateful_handle_non_finite_grads()
        self._bound_scale()

    def _bound_scale(self) -> None:
        scale = self.dynamic_scale
        scale.assign(tf.clip_by_value(scale.value, *self._scale_bounds()))

    def _scale_bounds(self) -> tuple[float, float]:
        # A scale of 0 or infinity never changes again, and 0 turns NaN gradients into zeros.
        initial: float = self.initial_scale
        return min(1.0, initial), max(2.0**126, initial)


@functools.cache
def _distributed_class(optimizer_cls: type[keras.optimizers.Optimizer]) -> type:
    # Keras saves an optimizer under the name and module of its class, so keep both.
    namespace = {
        "__module__": optimizer_cls.__module__,
        "__qualname__": optimizer_cls.__qualname__,
        "__doc__": optimizer_cls.__doc__,
    }
    is_scaling = issubclass(optimizer_cls, keras.optimizers.LossScaleOptimizer)
    mixin = DistributedLossScaleOptimizer if is_scaling else DistributedOptimizer
    mixins = (mixin, *update_steps.mixins_for(optimizer_cls))
    return type(optimizer_cls.__name__, (*mixins, optimizer_cls), namespace)


@contextlib.contextmanager
def undivided_losses() -> Iterator[None]:
    """Compute Keras losses in this thread without dividing by the number of replicas.

    Keras 3 divides the loss of a `keras.losses.Loss` object by this number, because `fit` sums the
    gradients of all replicas. A task divides its loss itself, as in the Model Garden. With both
    divisions, the loss and the gradients would be too small by a factor of the number of replicas.
    """
    before = getattr(_loss_scaling, "is_undivided", False)
    _loss_scaling.is_undivided = True
    try:
        yield
    finally:
        _loss_scaling.is_undivided = before


def _unless_told(scale: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    @functools.wraps(scale)
    def scale_unless_told(value: tf.Tensor) -> tf.Tensor:
        return value if getattr(_loss_scaling, "is_undivided", False) else scale(value)

    return scale_unless_told


# Keras has no option for this. It looks the functions up in their module on each use, so replace
# them there.
for _name in ("scale_loss_for_distribution", "unscale_loss_for_distribution"):
    setattr(keras_loss, _name, _unless_told(getattr(keras_loss, _name)))
