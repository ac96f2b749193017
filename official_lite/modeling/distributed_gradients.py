"""Optimizers that sum gradients over replicas before clipping, and losses scaled to match.

Their update steps have fewer ops than Keras'. Keras 3 writes the update of a variable as a dozen
ops, most of which traverse the whole variable, and it recomputes shared values for each variable.
The update-step mixins precede an optimizer class among its bases. The optimizer's variables remain
the same, and the results differ from those of Keras only by rounding.

The exception is the opt-in `lazy_rows`, which changes the results: the rows of a table that a step
looks up are updated as usual, and everything that belongs to the other rows stays unchanged.
"""

import collections
import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import keras
import tensorflow as tf
from absl import logging
from keras.src.losses import loss as keras_loss
from tensorflow.python.ops import control_flow_util

from official_lite.common import errors, keras_variables, user_code

__all__ = [
    "DistributedLossScaleOptimizer",
    "DistributedOptimizer",
    "GradientTransformer",
    "gradients_already_summed",
    "has_lazy_rows",
    "innermost_optimizers",
    "make_distributed",
    "observe_gradients",
    "refusing_updates",
    "sum_over_replicas",
    "undivided_losses",
    "updates_rows",
    "wrapped_optimizers",
]

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices
GradsAndVars: TypeAlias = Sequence[tuple[Gradient | None, keras.Variable]]
_Value = TypeVar("_Value")
GradientTransformer = Callable[[list[tuple[Any, Any]]], Iterable[tuple[Any, Any]]]

# Use context variables, which are set per thread, because each replica of a `MirroredStrategy` has
# its own thread.
_already_summed = contextvars.ContextVar("already_summed", default=False)
_undivided = contextvars.ContextVar("undivided", default=False)
_refusal = contextvars.ContextVar("refusal", default="")
# Whether a `MultiOptimizer` is applying its update through its inner optimizers.
_in_groups = contextvars.ContextVar("in_groups", default=False)

if TYPE_CHECKING:

    class _OptimizerHalf(keras.optimizers.Optimizer):
        """Base class of the mixins for type checkers; allows access to any optimizer attribute."""

        def __getattr__(self, name: str) -> Any: ...
else:
    # At runtime the mixins derive from `object`; their subclasses also derive from an optimizer.
    _OptimizerHalf = object


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
    # Include the optimizers of a `keras.optimizers.MultiOptimizer`, each of which updates a subset
    # of the variables.
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
    if not isinstance(optimizer, _RowUpdate):
        raise errors.ConfigValueError(
            "`lazy_rows` supports Adam, AdamW, SGD, RMSprop and Adagrad, but not "
            f"{type(optimizer).__name__}, which updates whole tables. Use a supported optimizer or "
            "set `lazy_rows` to false."
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
    *_, innermost = wrapped_optimizers(optimizer)
    # The optimizers in a `MultiOptimizer` make a single update together, so call the observer once.
    is_one_update = isinstance(innermost, _PartialUpdate)
    for one in [innermost] if is_one_update else innermost_optimizers(optimizer):
        if isinstance(one, DistributedOptimizer):
            # Bypass `__setattr__`, which would track the value for saving.
            one.__dict__["gradient_observer"] = observer


def updates_rows(optimizer: keras.optimizers.Optimizer) -> bool:
    """Return whether an update of a table can leave rows without a gradient unchanged."""
    return any(getattr(one, "leaves_other_rows", False) for one in innermost_optimizers(optimizer))


def has_lazy_rows(optimizer: keras.optimizers.Optimizer) -> bool:
    """Return whether `lazy_rows` is set, which leaves rows without a gradient unchanged."""
    return any(getattr(one, "lazy_rows", False) for one in innermost_optimizers(optimizer))


def innermost_optimizers(optimizer: keras.optimizers.Optimizer) -> Iterable[Any]:
    """Return the optimizers that change the variables."""
    *_, innermost = wrapped_optimizers(optimizer)
    optimizers: Iterable[Any] = getattr(innermost, "optimizers", [innermost])
    return optimizers


@contextlib.contextmanager
def gradients_already_summed() -> Iterator[None]:
    """Make optimizers in this thread treat gradients as already summed, within the block."""
    with _set(_already_summed, True):
        yield


@contextlib.contextmanager
def refusing_updates(reason: str) -> Iterator[None]:
    """Make any update by a `DistributedOptimizer` in this thread raise, within the block.

    Args:
        reason: The end of the message: why there must be no update, and the remedy.
    """
    with _set(_refusal, reason):
        yield


@contextlib.contextmanager
def _set(variable: contextvars.ContextVar[_Value], value: _Value) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


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


class DistributedOptimizer(_OptimizerHalf):
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

        Raises:
            ConfigValueError: The function was called within `refusing_updates`.
        """
        if reason := _refusal.get():
            raise errors.ConfigValueError(f"The optimizer `{self.name}` makes an update, {reason}")
        if _already_summed.get():
            return list(gradients)
        pairs = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
        if self.gradient_aggregator is not None:
            summed = iter([gradient for gradient, _ in self.gradient_aggregator(pairs)])
        else:
            summed = iter(_all_reduce([gradient for gradient, _ in pairs]))
        return [None if gradient is None else next(summed) for gradient in gradients]

    # The methods below override steps of Keras' `apply`, in call order.

    def _filter_empty_gradients(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        pairs = list(zip(grads, trainable_variables, strict=True))
        present = [(g, v) for g, v in pairs if g is not None]
        missing = [keras_variables.path_of(v) for g, v in pairs if g is None]
        if missing and not present and not _in_groups.get():
            raise errors.ConfigValueError(
                f"No gradients provided for any variable: {', '.join(missing)}. Make sure that the "
                "loss depends on these variables and is computed inside the `tf.GradientTape`."
            )
        if not _in_groups.get():
            self._warn_of_missing(missing)
        gradients = [g for g, _ in present]
        if self.loss_scale_factor is not None:
            # Make sparse gradients dense, because Keras can't divide them by the loss scale.
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
        pairs = list(zip(self._combine_rows(summed), trainable_variables, strict=True))
        if self.gradient_observer is not None:
            self.gradient_observer(pairs)
        for transformer in self.gradient_transformers:
            pairs = list(transformer(pairs))
        super()._backend_apply_gradients(
            [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        )

    def _combine_rows(self, gradients: Sequence[Any]) -> list[Any]:
        """Return the gradients with unique rows, or dense if the update changes whole tables."""
        if reason := self._why_not_rows():
            gradients = self._make_dense(gradients, reason)
        return [_sum_equal_rows(gradient) for gradient in gradients]

    def _why_not_rows(self) -> str | None:
        """Return why sparse gradients must become dense, or None if they may stay sparse."""
        if not getattr(self, "leaves_other_rows", False):
            return "its update changes all rows"
        if self.gradient_transformers:
            return "it has gradient transformers"
        if self.gradient_accumulation_steps:
            return "it has `gradient_accumulation_steps`"
        # The number of distinct rows is unknown to XLA, so it would process the rows of all lookups
        # one by one.
        if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
            return "XLA compiles the update (use `runtime.execution=graph` instead)"
        return None

    def _make_dense(self, gradients: Sequence[Any], reason: str) -> list[Any]:
        """Return dense gradients; raise if a dense update would contradict `lazy_rows`."""
        is_sparse = any(isinstance(gradient, tf.IndexedSlices) for gradient in gradients)
        if is_sparse and has_lazy_rows(self):
            raise errors.ConfigValueError(
                f"The optimizer has `lazy_rows`, but cannot update individual rows: {reason}. "
                "Remove the cause, or set `lazy_rows` to false."
            )
        return [None if g is None else tf.convert_to_tensor(g) for g in gradients]

    def _clip_gradients(self, grads: Sequence[Any]) -> list[Any]:
        # Clip only the rows in a sparse gradient: the missing rows are zero and contribute nothing
        # to a norm.
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
        # Convert the rate to a tensor, so that it is not read once per variable.
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

    # Whether `scale_loss` has been called, or a warning was logged.
    _has_scaled_loss = False

    @user_code.not_converted
    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        """Return the loss times the scale; see `keras.optimizers.LossScaleOptimizer`."""
        # Bypass `__setattr__`, which would track the value for saving.
        self.__dict__["_has_scaled_loss"] = True
        scaled: tf.Tensor = super().scale_loss(loss)
        return scaled

    def get_scaled_loss(self, loss: tf.Tensor) -> tf.Tensor:
        """Return the loss times the scale; the Keras 2 name of `scale_loss`."""
        return self.scale_loss(loss)

    def get_unscaled_gradients(self, grads: Sequence[Any]) -> list[Any]:
        """Return the gradients unchanged, because `apply_gradients` divides them by the scale."""
        return list(grads)

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Skip the update and halve the scale if a summed gradient is infinite or NaN."""
        self._warn_of_unscaled_loss()
        variables = list(trainable_variables or self._trainable_variables)
        *_, innermost = wrapped_optimizers(self)
        summed = innermost.sum_gradients(grads, variables)
        super().apply(self._make_dense(summed, "the loss is scaled"), variables)

    def _warn_of_unscaled_loss(self) -> None:
        if not self._has_scaled_loss:
            self.__dict__["_has_scaled_loss"] = True  # Warn once.
            logging.warning(
                "The training step never calls `scale_loss` of the optimizer `%s`, which divides "
                "the gradients by its loss scale, so the updates are far too small. Compute the "
                "gradients of `optimizer.scale_loss(loss)`.",
                self.name,
            )

    def _stateful_handle_finite_grads(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any]
    ) -> None:
        # Mark the gradients as summed here rather than in `apply`. The mark is valid for one thread
        # only, and Keras may call this method in another thread than `apply`.
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
        # Bound the loss scale: a scale of 0 or infinity would never change again, and a scale of 0
        # turns NaN gradients into zeros.
        initial: float = self.initial_scale
        return min(1.0, initial), max(2.0**126, initial)


def _sum_equal_rows(gradient: Gradient) -> Gradient:
    """Return a sparse gradient with duplicate rows summed, or a dense gradient unchanged."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


@functools.cache
def _distributed_class(optimizer_cls: type[keras.optimizers.Optimizer]) -> type:
    # Keras saves an optimizer under the name and module of its class, so keep both.
    namespace = {
        "__module__": optimizer_cls.__module__,
        "__qualname__": optimizer_cls.__qualname__,
        "__doc__": optimizer_cls.__doc__,
    }
    bases = (*_mixins_for(optimizer_cls), optimizer_cls)
    distributed_cls = type(optimizer_cls.__name__, bases, namespace)
    package, _, name = keras.saving.get_registered_name(optimizer_cls).rpartition(">")
    if package:
        # Register both classes under the same name, from which Keras restores the original class.
        for cls in (distributed_cls, optimizer_cls):
            keras.saving.register_keras_serializable(package, name)(cls)
    return distributed_cls


def _mixins_for(optimizer_cls: type[keras.optimizers.Optimizer]) -> Iterator[type]:
    """Yield a `DistributedOptimizer`, and mixins for methods inherited unchanged from Keras."""
    if issubclass(optimizer_cls, keras.optimizers.LossScaleOptimizer):
        yield DistributedLossScaleOptimizer
    elif optimizer_cls.apply is keras.optimizers.MultiOptimizer.apply:
        yield _PartialUpdate
    else:
        yield DistributedOptimizer
    if optimizer_cls._apply_weight_decay is keras.optimizers.Optimizer._apply_weight_decay:
        yield _WeightDecay
    for keras_cls, mixin in _UPDATES.items():
        if optimizer_cls.update_step is keras_cls.update_step:
            yield mixin


class _PartialUpdate(DistributedOptimizer):
    """Mixin for `keras.optimizers.MultiOptimizer` that combines its optimizers into one update.

    Gradients may be given for only some of the variables, and an optimizer may receive none. Keras
    expects a gradient, which may be None, for each of the variables.
    """

    def build(self, variables: Sequence[Any]) -> None:
        """Create all variables, and the optimizers that a function returns for them."""
        super().build(variables)
        for one in self.optimizers:
            make_distributed(one)

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Update the variables; those that are missing get None as their gradient."""
        known = self._trainable_variables  # Empty before the first update builds the optimizer.
        variables = known if trainable_variables is None else trainable_variables
        given = {id(keras_variables.raw(variable)) for variable in variables}
        missing = [variable for variable in known if id(keras_variables.raw(variable)) not in given]
        variables = [*variables, *missing]
        summed = self.sum_gradients([*grads, *[None] * len(missing)], variables)
        # Raise and warn here, where the gradients of all optimizers are known.
        present, updated = self._filter_empty_gradients(summed, variables)
        if self.gradient_observer is not None:
            if self.loss_scale_factor is not None:
                present = [gradient / self.loss_scale_factor for gradient in present]
            owners = self._owners(updated)
            pairs = zip(present, owners, strict=True)
            shown = [combined for g, one in pairs for combined in one._combine_rows([g])]
            self.gradient_observer(list(zip(shown, updated, strict=True)))
        with gradients_already_summed(), _set(_in_groups, True):
            super().apply(summed, variables)

    def sum_gradients(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the gradients summed by this optimizer's aggregator, or those of its optimizers.

        This creates the optimizers if they do not exist yet.
        """
        if not self.built:
            self.build(variables)
        if self.gradient_aggregator is not None:
            return super().sum_gradients(gradients, variables)
        self._check_variables_are_known(variables)
        places = collections.defaultdict(list)
        pairs = zip(gradients, self._owners(variables), strict=True)
        for place, (gradient, owner) in enumerate(pairs):
            if gradient is not None:
                places[owner].append(place)
        summed = list(gradients)
        for one, own in places.items():
            sums = one.sum_gradients([gradients[i] for i in own], [variables[i] for i in own])
            for place, gradient in zip(own, sums, strict=True):
                summed[place] = gradient
        return summed

    def _owners(self, variables: Sequence[Any]) -> list[Any]:
        """Return the optimizer that updates each of the variables."""
        owners = {
            id(keras_variables.raw(variable)): one
            for one in self.optimizers
            for variable in one._trainable_variables
        }
        return [owners[id(keras_variables.raw(variable))] for variable in variables]


class _WeightDecay(_OptimizerHalf):
    """Mixin for weight decay that computes `learning_rate * weight_decay` once for all variables.

    With `lazy_rows`, rows of a table decay only in the steps that look them up.
    """

    lazy_rows = False

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        # With lazy rows, `_backend_update_step` selects the variables that decay as a whole.
        if not self.lazy_rows:
            self._decay_whole(variables)

    def _backend_update_step(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any], learning_rate: tf.Tensor
    ) -> None:
        if self.lazy_rows:
            pairs = zip(grads, trainable_variables, strict=True)
            self._decay_whole([v for g, v in pairs if not isinstance(g, tf.IndexedSlices)])
        super()._backend_update_step(grads, trainable_variables, learning_rate)

    def _decay_whole(self, variables: Sequence[Any]) -> None:
        if not self.weight_decay:
            return
        rate = tf.convert_to_tensor(self.learning_rate) * self.weight_decay
        tf.__internal__.distribute.interim.maybe_merge_call(
            self._decay_all,
            self._distribution_strategy,
            [*map(keras_variables.raw, variables)],
            rate,
        )

    def _decay_all(
        self, strategy: tf.distribute.Strategy, variables: Sequence[Any], rate: tf.Tensor
    ) -> None:
        for variable in variables:
            strategy.extended.update(variable, self._decay, args=(rate,), group=False)

    def _decay(self, variable: tf.Variable, rate: tf.Tensor) -> None:
        if self._use_weight_decay(variable):
            variable.assign_sub(tf.cast(rate, variable.dtype) * variable, read_value=False)


class _RowUpdate(_OptimizerHalf):
    """Base class of mixins that can update individual rows of a variable.

    Attributes:
        lazy_rows: Whether rows without a gradient, and their moments, stay unchanged even if the
            optimizer's formula would change them.
    """

    lazy_rows = False

    @property
    def leaves_other_rows(self) -> bool:
        """Whether rows without a gradient stay unchanged."""
        return self.lazy_rows

    def update_step(
        self,
        gradient: tf.Tensor | tf.IndexedSlices,
        variable: tf.Variable,
        learning_rate: tf.Tensor,
    ) -> None:
        """Update one variable, or its rows that have a gradient."""
        if isinstance(gradient, tf.IndexedSlices):
            values = tf.cast(gradient.values, variable.dtype)
            self._update_rows(variable, gradient.indices, values, learning_rate)
        else:
            self._update_whole(gradient, variable, learning_rate)

    def _update_whole(
        self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor
    ) -> None:
        super().update_step(gradient, variable, learning_rate)

    def _update_rows(
        self, variable: tf.Variable, rows: tf.Tensor, gradient: tf.Tensor, learning_rate: tf.Tensor
    ) -> None:
        """Update the given rows of a variable; `rows` contains no duplicates."""
        raise NotImplementedError

    def _subtract(
        self, variable: tf.Variable, rows: tf.Tensor, step: tf.Tensor, rate: tf.Tensor
    ) -> None:
        """Subtract `step` from rows of a variable; with `lazy_rows`, apply weight decay first."""
        values = _read_rows(variable, rows)
        if self.lazy_rows and self.weight_decay and self._use_weight_decay(variable):
            values -= tf.cast(rate * self.weight_decay, values.dtype) * values
        _write_rows(variable, rows, values - step)


class _AdamScalars(NamedTuple):
    """Scalars shared by all variables of an Adam update.

    `unbiased_rate` is the learning rate times the bias correction of the moments.
    """

    learning_rate: tf.Tensor
    beta_1_power: tf.Tensor
    beta_2_power: tf.Tensor
    unbiased_rate: tf.Tensor


class _AdamUpdate(_RowUpdate):
    """Mixin for `keras.optimizers.Adam` and its subclasses that makes updates faster.

    If the gradient is dense, one kernel updates the whole variable, unless separate ops are faster
    (see `_has_fast_kernel`). For float64 variables, and for float32 variables with `amsgrad`, the
    update of Keras is used. A gradient stays sparse only with `lazy_rows`; then only its rows are
    updated.

    This class computes both `1 - beta` and the powers of beta in float32. Keras uses float32 only
    for the powers, so with a `beta_2` of 0.999 its updates are off by 7 parts per million. The
    updates of this class are closer to the exact formula. In half precision Keras uses the dtype of
    the variable, in which a `beta_2` of 0.999 may be 1, so that its updates are zero.
    """

    def _backend_update_step(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any], learning_rate: tf.Tensor
    ) -> None:
        scalars = self._scalars(learning_rate)
        super()._backend_update_step(grads, trainable_variables, scalars)

    def update_step(
        self,
        gradient: tf.Tensor | tf.IndexedSlices,
        variable: tf.Variable,
        learning_rate: tf.Tensor,
    ) -> None:
        """Update one variable.

        Args:
            gradient: The gradient.
            variable: The variable of one replica.
            learning_rate: A scalar, or an `_AdamScalars` shared by all variables.
        """
        is_shared = isinstance(learning_rate, _AdamScalars)
        shared = learning_rate if is_shared else self._scalars(learning_rate)
        super().update_step(gradient, variable, shared)

    def _scalars(self, learning_rate: tf.Tensor) -> _AdamScalars:
        step = tf.cast(tf.convert_to_tensor(self.iterations) + 1, tf.float32)
        power_1 = tf.pow(tf.cast(self.beta_1, tf.float32), step)
        power_2 = tf.pow(tf.cast(self.beta_2, tf.float32), step)
        unbiased_rate = (
            tf.cast(learning_rate, tf.float32) * tf.sqrt(1.0 - power_2) / (1.0 - power_1)
        )
        return _AdamScalars(learning_rate, power_1, power_2, unbiased_rate)

    def _update_whole(
        self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: _AdamScalars
    ) -> None:
        shared = learning_rate
        is_half = variable.dtype.size < tf.float32.size
        if not is_half and (variable.dtype != tf.float32 or self.amsgrad):
            super()._update_whole(gradient, variable, shared.learning_rate)
            return
        index = self._get_variable_index(variable)
        mean, square = self._momentums[index], self._velocities[index]
        gradient = tf.cast(gradient, variable.dtype)
        if _has_fast_kernel(variable) and not is_half:
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=mean.handle,
                v=square.handle,
                beta1_power=shared.beta_1_power,
                beta2_power=shared.beta_2_power,
                lr=tf.cast(shared.learning_rate, tf.float32),
                beta1=self.beta_1,
                beta2=self.beta_2,
                epsilon=self.epsilon,
                grad=gradient,
            )
            return
        rest_1, rest_2 = (_rest(beta, variable.dtype) for beta in (self.beta_1, self.beta_2))
        self.assign_add(mean, (gradient - mean) * rest_1)
        self.assign_add(square, (tf.square(gradient) - square) * rest_2)
        if self.amsgrad:
            largest = self._velocity_hats[index]
            self.assign(largest, tf.maximum(largest, square))
            square = largest
        rate = tf.cast(shared.unbiased_rate, variable.dtype)
        self.assign_sub(variable, mean * rate / (tf.sqrt(square) + self.epsilon))

    def _update_rows(
        self,
        variable: tf.Variable,
        rows: tf.Tensor,
        gradient: tf.Tensor,
        learning_rate: _AdamScalars,
    ) -> None:
        index = self._get_variable_index(variable)
        mean = _move_rows(self._momentums[index], rows, gradient, self.beta_1)
        square = _move_rows(self._velocities[index], rows, tf.square(gradient), self.beta_2)
        if self.amsgrad:
            largest = self._velocity_hats[index]
            square = tf.maximum(_read_rows(largest, rows), square)
            _write_rows(largest, rows, square)
        rate = tf.cast(learning_rate.unbiased_rate, variable.dtype)
        step = rate * mean / (tf.sqrt(square) + self.epsilon)
        self._subtract(variable, rows, step, learning_rate.learning_rate)


def _has_fast_kernel(variable: tf.Variable) -> bool:
    """Return whether Adam's kernel is faster than separate ops.

    On CPUs the kernel distributes all but the smallest variables over threads. Up to a certain
    size, the distribution takes longer than the update itself: the kernel takes 30 µs for 1,024
    elements, compared with 8 µs for the ops.
    """
    is_middling = 512 <= variable.shape.num_elements() < 2**15
    return not (is_middling and "CPU" in variable.device)


class _SGDUpdate(_RowUpdate):
    """Mixin for `keras.optimizers.SGD` with one-kernel updates and updates of individual rows."""

    @property
    def leaves_other_rows(self) -> bool:
        """Whether rows without a gradient stay unchanged."""
        return self.lazy_rows or not self.momentum

    def _update_whole(
        self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor
    ) -> None:
        rate, gradient = (tf.cast(x, variable.dtype) for x in (learning_rate, gradient))
        if not self.momentum:
            tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)
            return
        tf.raw_ops.ResourceApplyKerasMomentum(
            var=variable.handle,
            accum=self.momentums[self._get_variable_index(variable)].handle,
            lr=rate,
            grad=gradient,
            momentum=tf.cast(self.momentum, variable.dtype),
            use_nesterov=self.nesterov,
        )

    def _update_rows(
        self, variable: tf.Variable, rows: tf.Tensor, gradient: tf.Tensor, learning_rate: tf.Tensor
    ) -> None:
        rate = tf.cast(learning_rate, variable.dtype)
        step = rate * gradient
        if self.momentum:
            momentum = self.momentums[self._get_variable_index(variable)]
            kept = tf.cast(self.momentum, variable.dtype)
            moved = kept * _read_rows(momentum, rows) - step
            _write_rows(momentum, rows, moved)
            step = step - kept * moved if self.nesterov else -moved
        self._subtract(variable, rows, step, rate)


class _AdagradUpdate(_RowUpdate):
    """Mixin for `keras.optimizers.Adagrad` that updates individual rows of a variable."""

    @property
    def leaves_other_rows(self) -> bool:
        """Always True: the dense update leaves rows without a gradient unchanged as well."""
        return True

    def _update_rows(
        self, variable: tf.Variable, rows: tf.Tensor, gradient: tf.Tensor, learning_rate: tf.Tensor
    ) -> None:
        accumulator = self._accumulators[self._get_variable_index(variable)]
        squares = _read_rows(accumulator, rows) + tf.square(gradient)
        _write_rows(accumulator, rows, squares)
        step = tf.cast(learning_rate, variable.dtype) * gradient
        step /= tf.sqrt(squares + self.epsilon)
        self._subtract(variable, rows, step, learning_rate)


class _RMSpropUpdate(_RowUpdate):
    """Mixin for `keras.optimizers.RMSprop` that updates individual rows of a variable."""

    def _update_rows(
        self, variable: tf.Variable, rows: tf.Tensor, gradient: tf.Tensor, learning_rate: tf.Tensor
    ) -> None:
        index = self._get_variable_index(variable)
        spread = _move_rows(self._velocities[index], rows, tf.square(gradient), self.rho)
        if self.centered:
            mean = _move_rows(self._average_gradients[index], rows, gradient, self.rho)
            spread -= tf.square(mean)
        step = tf.cast(learning_rate, variable.dtype) * gradient
        step /= tf.sqrt(spread + self.epsilon)
        if self.momentum > 0:
            momentum = self._momentums[index]
            step += self.momentum * _read_rows(momentum, rows)
            _write_rows(momentum, rows, step)
        self._subtract(variable, rows, step, learning_rate)


_UPDATES: dict[Any, type] = {
    keras.optimizers.Adam: _AdamUpdate,
    keras.optimizers.SGD: _SGDUpdate,
    keras.optimizers.Adagrad: _AdagradUpdate,
    keras.optimizers.RMSprop: _RMSpropUpdate,
}


def _read_rows(variable: tf.Variable, rows: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.ResourceGather(resource=variable.handle, indices=rows, dtype=variable.dtype)


def _move_rows(average: tf.Variable, rows: tf.Tensor, target: tf.Tensor, decay: float) -> tf.Tensor:
    """Move rows of a moving average toward `target`, and return the new values."""
    values = _read_rows(average, rows)
    values += (target - values) * _rest(decay, target.dtype)
    _write_rows(average, rows, values)
    return values


def _rest(decay: float, dtype: tf.DType) -> tf.Tensor:
    """Return `1 - decay`, computed in at least float32, because 0.999 is 1 in bfloat16."""
    precise = keras.backend.result_type(dtype, "float32")
    return tf.cast(1.0 - tf.cast(decay, precise), dtype)


def _write_rows(variable: tf.Variable, rows: tf.Tensor, values: tf.Tensor) -> None:
    # Assigning rows is several times faster than adding to them.
    tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=rows, updates=values)


@contextlib.contextmanager
def undivided_losses() -> Iterator[None]:
    """Compute Keras losses in this thread without dividing by the number of replicas.

    Keras 3 divides the loss of a `keras.losses.Loss` object by this number, because `fit` sums the
    gradients of all replicas. A task divides its loss itself, as in the Model Garden. With both
    divisions, the loss and the gradients would be too small by a factor of the number of replicas.
    """
    with _set(_undivided, True):
        yield


def _unless_told(scale: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    @functools.wraps(scale)
    def scale_unless_told(value: tf.Tensor) -> tf.Tensor:
        return value if _undivided.get() else scale(value)

    return scale_unless_told


# Keras has no option to skip the division by the number of replicas. It looks these functions up in
# their module on each call, so replace them there.
for _name in ("scale_loss_for_distribution", "unscale_loss_for_distribution"):
    setattr(keras_loss, _name, _unless_told(getattr(keras_loss, _name)))
