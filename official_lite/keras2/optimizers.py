"""Base optimizers for subclasses written for Keras 2, and a mixin for other optimizers."""

import functools
import inspect
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from official_lite.common import errors, keras_variables, suggestions

if TYPE_CHECKING:
    from keras.optimizers import Optimizer as _OptimizerHalf
else:
    # At runtime the mixin derives from `object`; its subclasses also derive from an optimizer.
    _OptimizerHalf = object

_CONSTRUCTOR = ("clipnorm", "clipvalue", "decay", "global_clipnorm", "lr")
_CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")
_ADD_VARIABLE = ("model_variable", "variable_name", "shape", "initial_value")


class Optimizer(keras.optimizers.Optimizer):
    """A `keras.optimizers.Optimizer` with the extension points of Keras 2.

    A subclass overrides:

    * `_resource_apply_dense(grad, var, apply_state=None)`: updates one variable.
    * `_resource_apply_sparse(grad, var, indices, apply_state=None)`: updates the rows `indices`,
      which are distinct. Without this method, sparse gradients are made dense.
    * `_create_slots(var_list)`: calls `add_slot(var, name)`. `get_slot(var, name)` returns the
      slot.
    * `_prepare_local(var_device, var_dtype, apply_state)`: stores what all variables of a device
      and a dtype share in the dictionary `apply_state[(var_device, var_dtype)]`. The method here
      stores the learning rate as `lr_t`.
    * `apply_gradients(grads_and_vars, ...)`: changes the gradients.

    Variables and slots are `tf.Variable`s, whose names are the paths of the Keras variables.

    `_set_hyper(name, value)` stores a number, a tensor, a schedule or a function, and
    `_get_hyper(name)` returns it. A hyperparameter is also an attribute of the optimizer. The
    hyperparameter `learning_rate` is that of Keras.

    Args:
        name: The name of the optimizer.
        **kwargs: `clipnorm`, `clipvalue`, `global_clipnorm`, and `decay`, by which `lr_t` is
            divided: `1 + decay * step`. A subclass may read `lr` from its own arguments.

    Raises:
        ConfigValueError: There is another argument.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "apply_gradients" in cls.__dict__:
            _set_method(cls, "apply", _apply_by(cls.__dict__["apply_gradients"]))

    def __init__(self, name: str | None = None, **kwargs: Any) -> None:
        for argument in kwargs:
            if argument not in _CONSTRUCTOR:
                raise errors.ConfigValueError(
                    f"A Keras 2 optimizer has no argument {argument!r}. "
                    f"{suggestions.did_you_mean(argument, _CONSTRUCTOR)}"
                )
        # Bypass `__setattr__`, because Keras already tracks slots as variables of the optimizer.
        self.__dict__.update(_hyper={}, _slots={}, _apply_state={})
        clipping = {key: kwargs.get(key) for key in _CLIPPING}
        super().__init__(learning_rate=_no_learning_rate, name=name, **clipping)
        self._initial_decay = kwargs.get("decay", 0.0)
        self._use_locking = True

    def __getattr__(self, name: str) -> Any:
        if name in ("learning_rate", "lr") and "_learning_rate" in self.__dict__:
            return self._get_current_learning_rate()
        if name in self.__dict__.get("_hyper", ()):
            return self._get_hyper(name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "lr" or name in self.__dict__.get("_hyper", ()):
            self._set_hyper("learning_rate" if name == "lr" else name, value)
        else:
            super().__setattr__(name, value)

    def _set_hyper(self, name: str, value: Any) -> None:
        previous = self._hyper.get(name)
        if isinstance(previous, keras.Variable) and isinstance(value, numbers.Real):
            previous.assign(value)
        else:
            self._hyper[name] = value
        if name == "learning_rate":
            self._get_hyper(name)
            self._learning_rate = self._hyper[name]

    def _get_hyper(self, name: str, dtype: tf.DType | None = None) -> Any:
        value = self._hyper[name]
        if isinstance(value, keras.optimizers.schedules.LearningRateSchedule):
            return value
        if isinstance(value, numbers.Real):
            # Store the number in a variable, whose value can still change after an update is
            # traced.
            with tf.init_scope():
                value = self.add_variable((), keras.initializers.Constant(value), name=name)
            self._hyper[name] = value
        value = value() if callable(value) else keras_variables.raw(value)
        return tf.cast(value, dtype) if dtype else value

    def _serialize_hyperparameter(self, name: str) -> Any:
        value = self._hyper[name]
        if isinstance(value, keras.optimizers.schedules.LearningRateSchedule):
            return keras.optimizers.schedules.serialize(value)
        value = value() if callable(value) else value
        return tf.convert_to_tensor(value).numpy().item() if tf.is_tensor(value) else value

    def get_config(self) -> dict[str, Any]:
        """Return the name and the arguments for clipping, to which a subclass adds its own."""
        given = {key: getattr(self, key) for key in _CLIPPING}
        return {"name": self.name} | {k: v for k, v in given.items() if v is not None}

    def build(self, variables: Sequence[Any]) -> None:
        """Create the hyperparameters and the slots."""
        if self.built:
            return
        super().build(variables)
        for name in sorted(self._hyper):
            self._get_hyper(name)
        for variable in variables:
            _name_by_path(variable)
        self._create_slots([*map(keras_variables.raw, variables)])

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        pass

    def add_slot(
        self, var: tf.Variable, slot_name: str, initializer: Any = "zeros", shape: Any = None
    ) -> tf.Variable:
        """Create a variable that belongs to a variable of the model, or return the existing one.

        Args:
            var: The variable of the model.
            slot_name: The name of the slot.
            initializer: The initial value, an initializer or its name.
            shape: The shape, by default that of `var`.
        """
        key = (self._get_variable_index(var), slot_name)
        if key not in self._slots:
            reference = self._trainable_variables[key[0]]
            if shape is None:
                slot = self.add_variable_from_reference(reference, slot_name, initializer)
            else:
                name = f"{keras_variables.path_of(reference).replace('/', '_')}_{slot_name}"
                slot = self.add_variable(shape, initializer, reference.dtype, name=name)
            self._slots[key] = slot
        return keras_variables.raw(self._slots[key])

    def get_slot(self, var: tf.Variable, slot_name: str) -> tf.Variable:
        """Return a variable that `add_slot` created."""
        return keras_variables.raw(self._slots[self._get_variable_index(var), slot_name])

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
    ) -> Any:
        """Update the variables; see `keras.optimizers.Optimizer.apply_gradients`."""
        grads, variables = zip(*grads_and_vars, strict=True)
        # Do not call `self.apply`, which calls the `apply_gradients` of a subclass.
        super().apply(grads, variables)
        return self.iterations

    @property
    def leaves_other_rows(self) -> bool:
        """Whether the subclass implements sparse updates, which leave other rows unchanged."""
        return type(self)._resource_apply_sparse is not Optimizer._resource_apply_sparse

    def _backend_update_step(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any], learning_rate: tf.Tensor
    ) -> None:
        self.__dict__["_apply_state"] = self._prepare(
            [*map(keras_variables.raw, trainable_variables)]
        )
        super()._backend_update_step(grads, trainable_variables, learning_rate)

    def _prepare(self, var_list: Sequence[tf.Variable]) -> dict[Any, dict[str, Any]]:
        apply_state: dict[Any, dict[str, Any]] = {}
        copies = [copy for variable in var_list for copy in keras_variables.local_values(variable)]
        for key in dict.fromkeys((one.device, one.dtype.base_dtype) for one in copies):
            apply_state[key] = {}
            with tf.device(key[0]):
                self._prepare_local(*key, apply_state)
        return apply_state

    def _prepare_local(
        self, var_device: str, var_dtype: tf.DType, apply_state: dict[Any, Any]
    ) -> None:
        apply_state[var_device, var_dtype]["lr_t"] = tf.identity(self._decayed_lr(var_dtype))

    def _fallback_apply_state(self, var_device: str, var_dtype: tf.DType) -> dict[str, Any]:
        apply_state: dict[Any, dict[str, Any]] = {(var_device, var_dtype): {}}
        self._prepare_local(var_device, var_dtype, apply_state)
        return apply_state[var_device, var_dtype]

    def _decayed_lr(self, var_dtype: tf.DType) -> tf.Tensor:
        rate = tf.cast(self._get_current_learning_rate(), var_dtype)
        if self._initial_decay:
            rate /= 1.0 + self._initial_decay * tf.cast(self.iterations, var_dtype)
        return rate

    def update_step(
        self,
        gradient: tf.Tensor | tf.IndexedSlices,
        variable: tf.Variable,
        learning_rate: tf.Tensor,
    ) -> None:
        """Update one variable by the subclass's method for dense or for sparse gradients."""
        is_sparse = isinstance(gradient, tf.IndexedSlices)
        accepts: Any = self._resource_apply_sparse if is_sparse else self._resource_apply_dense
        # As in Keras 2, the subclass's method may omit the parameter `apply_state`.
        has_state = "apply_state" in inspect.signature(accepts).parameters
        state: Any = {"apply_state": self._apply_state} if has_state else {}
        if is_sparse:
            apply = self._resource_apply_sparse_duplicate_indices
            apply(gradient.values, variable, gradient.indices, **state)
        else:
            self._resource_apply_dense(tf.convert_to_tensor(gradient), variable, **state)

    def _resource_apply_dense(
        self, grad: tf.Tensor, var: tf.Variable, apply_state: dict[Any, Any] | None
    ) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must override `_resource_apply_dense`.")

    def _resource_apply_sparse_duplicate_indices(
        self, grad: tf.Tensor, var: tf.Variable, indices: tf.Tensor, **kwargs: Any
    ) -> Any:
        rows, places = tf.unique(indices)
        values = tf.math.unsorted_segment_sum(grad, places, tf.size(rows))
        return self._resource_apply_sparse(values, var, rows, **kwargs)

    def _resource_apply_sparse(
        self,
        grad: tf.Tensor,
        var: tf.Variable,
        indices: tf.Tensor,
        apply_state: dict[Any, Any] | None = None,
    ) -> Any:
        has_state = "apply_state" in inspect.signature(self._resource_apply_dense).parameters
        arguments = {"apply_state": apply_state} if has_state else {}
        return self._resource_apply_dense(_dense(grad, var, indices), var, **arguments)

    def _resource_scatter_add(
        self, variable: tf.Variable, indices: tf.Tensor, values: tf.Tensor
    ) -> tf.Tensor:
        tf.raw_ops.ResourceScatterAdd(resource=variable.handle, indices=indices, updates=values)
        return variable.read_value()

    def _resource_scatter_update(
        self, variable: tf.Variable, indices: tf.Tensor, values: tf.Tensor
    ) -> tf.Tensor:
        tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=indices, updates=values)
        return variable.read_value()


class Adam(Optimizer):
    """Adam with the extension points of Keras 2; see `Optimizer` and `keras.optimizers.Adam`.

    The slots are `m`, `v` and, with `amsgrad`, `vhat`. The entries of an `apply_state` are those of
    Keras 2.
    """

    def __init__(
        self,
        learning_rate: float | Callable[..., Any] = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        name: str = "Adam",
        **kwargs: Any,
    ) -> None:
        super().__init__(name, **kwargs)
        self._set_hyper("learning_rate", kwargs.get("lr", learning_rate))
        self._set_hyper("decay", self._initial_decay)
        self._set_hyper("beta_1", beta_1)
        self._set_hyper("beta_2", beta_2)
        self.epsilon = epsilon or keras.config.epsilon()
        self.amsgrad = amsgrad

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments."""
        names = ("learning_rate", "decay", "beta_1", "beta_2")
        return {
            **super().get_config(),
            **{name: self._serialize_hyperparameter(name) for name in names},
            "epsilon": self.epsilon,
            "amsgrad": self.amsgrad,
        }

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        for name in ("m", "v", "vhat") if self.amsgrad else ("m", "v"):
            for variable in var_list:
                self.add_slot(variable, name)

    def _prepare_local(
        self, var_device: str, var_dtype: tf.DType, apply_state: dict[Any, Any]
    ) -> None:
        super()._prepare_local(var_device, var_dtype, apply_state)
        state = apply_state[var_device, var_dtype]
        step = tf.cast(self.iterations + 1, var_dtype)
        for name in ("beta_1", "beta_2"):
            beta = tf.identity(self._get_hyper(name, var_dtype))
            state[f"{name}_t"] = beta
            state[f"{name}_power"] = tf.pow(beta, step)
            state[f"one_minus_{name}_t"] = 1 - beta
        correction = tf.sqrt(1 - state["beta_2_power"]) / (1 - state["beta_1_power"])
        state["lr"] = state["lr_t"] * correction
        state["epsilon"] = tf.convert_to_tensor(self.epsilon, var_dtype)

    def _resource_apply_dense(
        self, grad: tf.Tensor, var: tf.Variable, apply_state: dict[Any, Any] | None = None
    ) -> Any:
        key = var.device, var.dtype.base_dtype
        state = (apply_state or {}).get(key) or self._fallback_apply_state(*key)
        slots = {name: self.get_slot(var, name).handle for name in ("m", "v")}
        apply = tf.raw_ops.ResourceApplyAdam
        if self.amsgrad:
            apply = tf.raw_ops.ResourceApplyAdamWithAmsgrad
            slots["vhat"] = self.get_slot(var, "vhat").handle
        return apply(
            var=var.handle,
            **slots,
            beta1_power=state["beta_1_power"],
            beta2_power=state["beta_2_power"],
            lr=state["lr_t"],
            beta1=state["beta_1_t"],
            beta2=state["beta_2_t"],
            epsilon=state["epsilon"],
            grad=grad,
            use_locking=self._use_locking,
        )

    def _resource_apply_sparse(
        self,
        grad: tf.Tensor,
        var: tf.Variable,
        indices: tf.Tensor,
        apply_state: dict[Any, Any] | None = None,
    ) -> Any:
        # Do not call `self._resource_apply_dense`: a subclass often overrides both methods.
        return Adam._resource_apply_dense(self, _dense(grad, var, indices), var, apply_state)


class UpdateStep(_OptimizerHalf):
    """Mixin that gives a subclass of a Keras optimizer what the new optimizers of Keras 2 have.

    * `update_step(gradient, variable)` has no learning rate among its arguments, and neither has
      `super().update_step(gradient, variable)`.
    * The constructor may be called without a learning rate, and with `jit_compile`.
      `_build_learning_rate` sets the learning rate.
    * `add_variable_from_reference(model_variable, variable_name, shape, initial_value)` returns a
      `tf.Variable`. Its value is converted from checkpoints of Keras 2.
    * `_index_dict[_var_key(variable)]` is the index of a variable.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "update_step" in cls.__dict__:
            _replace_update_step(cls, cls.__dict__["update_step"])

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("jit_compile", None)
        if args and (args[0] is None or isinstance(args[0], str)):
            # In Keras 2, the first argument of the base class's constructor is the name.
            kwargs["name"], *args_left = args
            args = tuple(args_left)
        if not args:
            kwargs.setdefault("learning_rate", 0.0)
        self.__dict__["_slots"] = {}
        self.__dict__["_rate_of_step"] = None
        super().__init__(*args, **kwargs)

    def _build_learning_rate(self, learning_rate: Any) -> Any:
        self.learning_rate = learning_rate
        return self._learning_rate

    @property
    def _index_dict(self) -> Mapping[Any, int]:
        indices: Mapping[Any, int] = self._trainable_variables_indices
        return indices

    def add_variable_from_reference(self, *args: Any, **kwargs: Any) -> Any:
        """Create a variable with the shape and dtype of a model's variable.

        Args:
            *args: The variable of the model, the name, the shape and the initial value.
            **kwargs: `model_variable`, `variable_name`, `shape` and `initial_value`, or the
                arguments of Keras 3.

        Returns:
            The `tf.Variable`, or the Keras variable for a call with the arguments of Keras 3.
        """
        given = kwargs | dict(zip(_ADD_VARIABLE, args, strict=False))
        if "variable_name" not in given:
            return super().add_variable_from_reference(*args, **kwargs)
        reference, name = given["model_variable"], given["variable_name"]
        shape, value = given.get("shape"), given.get("initial_value")
        if value is not None:
            shape = value.shape if shape is None else shape
        initializer: Any = "zeros" if value is None else lambda shape, dtype: tf.cast(value, dtype)
        if shape is None:
            slot = super().add_variable_from_reference(reference, name, initializer)
        else:
            path = f"{keras_variables.path_of(reference).replace('/', '_')}_{name}"
            slot = self.add_variable(shape, initializer, reference.dtype, name=path)
        self._slots[self._get_variable_index(reference), name] = slot
        return keras_variables.raw(slot)

    def update_step(
        self,
        gradient: tf.Tensor | tf.IndexedSlices,
        variable: tf.Variable,
        learning_rate: tf.Tensor | None = None,
    ) -> None:
        """Update a variable, by default with the learning rate of the current step."""
        rate = self._rate_of_step if learning_rate is None else learning_rate
        super().update_step(gradient, variable, rate)


def _dense(grad: tf.Tensor, var: tf.Variable, indices: tf.Tensor) -> tf.Tensor:
    return tf.convert_to_tensor(tf.IndexedSlices(grad, indices, tf.shape(var)))


def _no_learning_rate() -> float:
    """Return a placeholder learning rate, in use until the subclass sets its own."""
    return 0.0


def _apply_by(apply_gradients: Callable[..., Any]) -> Callable[..., None]:
    """Return an `apply` that calls `apply_gradients`, because optimizer wrappers call `apply`."""

    def apply(self: Any, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        variables = (
            self._trainable_variables if trainable_variables is None else trainable_variables
        )
        apply_gradients(self, list(zip(grads, variables, strict=True)))

    return apply


def _set_method(cls: Any, name: str, method: Callable[..., Any]) -> None:
    setattr(cls, name, method)


def _name_by_path(variable: keras.Variable | tf.Variable) -> None:
    """Name the `tf.Variable`s of a Keras variable by its path; skip any other variable.

    Subclasses compare the names of variables with patterns.
    """
    if isinstance(variable, keras.Variable):
        for copy in keras_variables.local_values(variable):
            # Set a private attribute, because TensorFlow has no other way to rename a variable.
            copy._handle_name = f"{variable.path}:0"


def _replace_update_step(optimizer_cls: Any, update_step: Callable[..., None]) -> None:
    if len(inspect.signature(update_step).parameters) != 3:
        return

    @functools.wraps(update_step)
    def with_rate(
        self: UpdateStep,
        gradient: tf.Tensor | tf.IndexedSlices,
        variable: tf.Variable,
        learning_rate: tf.Tensor | None = None,
    ) -> None:
        if learning_rate is not None:
            self.__dict__["_rate_of_step"] = learning_rate
        update_step(self, gradient, variable)

    optimizer_cls.update_step = with_rate
