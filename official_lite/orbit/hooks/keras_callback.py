"""A hook that runs a Keras callback."""

import contextlib
import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from official_lite import telemetry
from official_lite.common import errors, files, nested_dict, plugins
from official_lite.modeling.optimization import ema_optimizer
from official_lite.orbit import reports, runner
from official_lite.orbit.hooks import saving_and_stopping
from official_lite.orbit.hooks.hook import Hook

# The events at which a callback may act on evaluation results.
_AFTER_EVALUATION = ("on_test_end", "on_epoch_end", "on_train_end")

_BATCH_EVENTS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")


def create(
    callback: str | keras.callbacks.Callback, arguments: dict[str, Any]
) -> keras.callbacks.Callback:
    """Create the callback of a config.

    Args:
        callback: A callback, the name of a class in `keras.callbacks`, or `module:Class`.
        arguments: The arguments of the class.

    Raises:
        errors.ConfigError: There is no such class, or it takes different arguments.
    """
    if isinstance(callback, str):
        return plugins.factory(
            {"name": callback, **arguments},
            registry=keras_callbacks(),
            base=keras.callbacks.Callback,
            kind="Keras callback",
            is_part=True,
        )()
    if not isinstance(callback, keras.callbacks.Callback) or arguments:
        raise errors.ConfigTypeError(
            f"KerasCallback got a {type(callback).__name__} and the arguments {sorted(arguments)}; "
            "expected a `keras.callbacks.Callback`, or the name of a class and its arguments."
        )
    return callback


def hears_batches(callback: keras.callbacks.Callback) -> bool:
    """Return whether the callback needs batch events."""
    # If `save_freq` is "epoch", Keras' own callbacks ignore batch events.
    if getattr(callback, "save_freq", None) == "epoch":
        return False
    methods = (getattr(callback, event) for event in _BATCH_EVENTS)
    own = {getattr(keras.callbacks.Callback, event) for event in _BATCH_EVENTS}
    return any(getattr(method, "__func__", method) not in own for method in methods)


def keras_callbacks() -> dict[str, type[keras.callbacks.Callback]]:
    """Return the classes of `keras.callbacks` by their names."""
    public = {name: getattr(keras.callbacks, name) for name in dir(keras.callbacks)}
    return {
        name: found
        for name, found in public.items()
        if isinstance(found, type) and issubclass(found, keras.callbacks.Callback)
    }


# The names under which trainers report the values that Keras calls `loss` and `val_loss`.
_LOSSES = ("training_loss", "validation_loss")


class KerasCallback(Hook):
    """Runs any `keras.callbacks.Callback` unchanged.

    ::

        KerasCallback(keras.callbacks.ReduceLROnPlateau(patience=2))
        {name: keras_callback, callback: CSVLogger, filename: runs/digits/log.csv}

    * An epoch is `steps_per_epoch` steps, if the controller was given that number. Otherwise an
      epoch ends with each evaluation, and a run without evaluations is one epoch.
    * At the end of an epoch, `logs` contains the last training report, and the results of the
      evaluation within the epoch with the prefix `val_`. Nested names are joined with `/`.
      `training_loss` and `validation_loss` are renamed to `loss` and `val_loss`. The measured
      `steps_per_second` is left out, because callbacks keep `logs` in the state that is saved.
    * For a batch, `logs` contains the last report. If the trainer's `last_step_outputs` is a
      dictionary, `logs` also contains its numbers.
    * `model.stop_training = True` requests a graceful stop. A run that a callback has stopped does
      not continue when it is started again, unless the `patience` of `EarlyStopping` is increased
      or the callback is removed. `model.optimizer` is the trainer's optimizer.
    * If the optimizer averages the weights, a callback that monitors an evaluation (`val_…`) finds
      the averaged weights in the model, which were evaluated, at the end of an epoch and of the
      training. Weights that such a callback sets, such as the best ones, replace both the trained
      and the averaged weights. `SwapEMAWeights` is not needed and does nothing.
    * `on_train_end` is called at the end of the last epoch, before that step is saved. The last
      checkpoint therefore contains the best weights that `EarlyStopping(restore_best_weights=True)`
      restores at that point, although the evaluation of that step used the previous weights. If
      training ends within an epoch, for example because another hook stops it, the step has already
      been saved. The hook then warns about weights that change afterwards.
    * As in Keras, each worker runs the callback, evaluations between `on_train_end` and the end of
      the run are not passed to it, and `on_train_end` is not called after an error. A run that
      resumes from its own checkpoint does not restore the weights of `BackupAndRestore`, which
      belong to another step.
    * If training resumes, `CSVLogger` continues its file, even without `append`. Rows after the
      restored step are removed.
    * If a controller trains several times in a row, Keras' own callbacks continue with their state.
    * Checkpoints contain the epoch number, the step at which the epoch began, the last training
      report, the results of the evaluation within the epoch, and the callback's own state: its
      attributes that are numbers, strings, arrays, or lists and dictionaries of them, if they
      changed since `on_train_begin`. Arguments of Keras' own classes are taken from the config. A
      callback whose class or `monitor` differs from the saved one starts with its initial state, in
      the current epoch of the run.

    Args:
        callback: A callback, the name of a class in `keras.callbacks`, or `module:Class`.
        every_n_steps: The interval of batch events. By default, they run at every step if the
            callback overrides one of them, and never otherwise. Running at every step splits the
            compiled loop into single steps.
        **arguments: The arguments of the class.

    Raises:
        errors.ConfigError: There is no such class, or it takes different arguments.
    """

    # An evaluation may end training, and `EarlyStopping` then restores the best weights.
    sets_weights = True

    def __init__(
        self,
        callback: str | keras.callbacks.Callback,
        every_n_steps: int | None = None,
        **arguments: Any,
    ) -> None:
        self.callback = create(callback, arguments)
        # Store the model here, too, because a callback may override `set_model`.
        self._model: Any = None
        self.watched_metric = self._find_watched_metric()
        self.every_n_steps = every_n_steps
        if every_n_steps is None:
            self.every_n_steps = self._default_interval()
        self._epoch = 0
        # The step at which the current epoch began; None if no epoch has begun.
        self._first_step: int | None = None
        self._is_training = False
        self._has_ended = False
        # Whether the callback has ended training, possibly in an earlier process.
        self._has_stopped = False
        # The last training report before the restored checkpoint was saved.
        self._earlier_logs: dict[str, float] = {}
        self._validation_logs: dict[str, float] = {}
        self._epoch_logs: dict[str, float] = {}
        self._state = _CallbackState(self.callback)
        self._csv_file: _CsvFile | None = None
        if isinstance(self.callback, keras.callbacks.CSVLogger):
            self._csv_file = _CsvFile(self.callback)

    def _find_watched_metric(self) -> str:
        """Return the name that the monitored metric has in evaluation logs.

        The name is empty unless the callback is one of Keras' own and its metric is from an
        evaluation.
        """
        monitor = str(getattr(self.callback, "monitor", ""))
        if not self._is_of_keras() or not monitor.startswith("val_"):
            return ""
        name = monitor.removeprefix("val_")
        return f"validation_{name}" if f"validation_{name}" in _LOSSES else name

    def _is_of_keras(self) -> bool:
        return type(self.callback).__module__.startswith("keras.")

    def _identity(self) -> dict[str, str]:
        """Return the fields that distinguish this callback from those of other hooks."""
        monitor = getattr(self.callback, "monitor", "")
        # Ignore other objects, because their text may contain an address, which differs in each
        # process.
        named = monitor if isinstance(monitor, str) else ""
        return {"callback": type(self.callback).__name__, "monitor": named}

    def before_train(self) -> None:
        self._set_model()
        self._model.stop_training = False
        self._is_training = True
        self._has_ended = False
        if self._begin_test not in self.controller.eval_preparations:
            self.controller.eval_preparations.append(self._begin_test)
        self._begin_train()
        if self._first_step is None:
            self._state.restore()
        else:
            self._continue_epoch()
        self._has_stopped = self._stays_stopped()
        if self._has_stopped:
            is_early = isinstance(self.callback, keras.callbacks.EarlyStopping)
            self._request_stop(
                "stopped the run before this start; to train on, "
                f"{'increase `patience` or ' if is_early else ''}remove the callback"
            )
            if self._first_step is None:
                # No step follows, so a repeated evaluation of the last step must not end an epoch.
                self._first_step = self.controller.step
        elif self._first_step is None:
            self._begin_epoch()

    def before_step(self) -> None:
        self._call("on_train_batch_begin", self._batch(), {})

    def after_step(self) -> None:
        logs = {**self._train_logs(), **self._last_step_logs()}
        self._call("on_train_batch_end", self._batch(), logs)

    def after_epoch(self) -> None:
        self._next_epoch()

    def after_eval(self, logs: Mapping[str, Any]) -> None:
        if self._has_ended:
            return
        validation_logs = _keras_logs(logs)
        if self.watched_metric:
            # Raise an error if the evaluation lacks the monitored metric. Keras itself only warns.
            saving_and_stopping.find_metric(
                self.callback.monitor.removeprefix("val_"), validation_logs
            )
        if self._begin_test not in self.controller.eval_preparations:
            self._set_model()
            self._begin_test()
        self._call("on_test_end", validation_logs)
        self._validation_logs = {f"val_{name}": v for name, v in validation_logs.items()}
        if not self.controller.steps_per_epoch:
            self._next_epoch()

    def after_train(self, success: bool) -> None:
        if success and self._is_training:
            if self.controller.is_interrupted:
                # A resumed run completes the epoch, so the epoch does not end here.
                self._call("on_train_end", self._epoch_logs)
            else:
                # If a finished run is started again, no step runs, so no epoch ends.
                if self._has_trained() and self.controller.step != self.controller.first_step:
                    self._end_epoch()
                self._end_train()
        if success and self._is_of_keras():
            # Keras' own callbacks reset their state in `on_train_begin`. Keep the current state, so
            # that the next call of `train` can restore it.
            self._state.restored = self._state.changes()
        self._is_training = False
        self._has_ended = False

    def state_dict(self) -> dict[str, Any]:
        # Before training begins, only the restored state exists.
        state, train_logs = self._state.restored, self._earlier_logs
        if self._state.has_begun:
            state, train_logs = self._state.changes(), self._train_logs()
        arrays: dict[str, Any] = {}
        attributes = {"attributes": _pack(state, arrays)} if state else {}
        of_epoch = {
            "first_step": self._first_step,
            "train_logs": train_logs,
            "validation_logs": self._validation_logs,
            "file_size": self._csv_file.size() if self._csv_file is not None else None,
        }
        if self._has_stopped:
            of_epoch["stopped"] = True
        of_epoch = {name: value for name, value in of_epoch.items() if value not in (None, {})}
        return {**self._identity(), "epoch": self._epoch, **of_epoch, **attributes, **arrays}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        own = self._identity()
        saved = {name: state.get(name, value) for name, value in own.items()}
        if saved != own:
            # States are matched by the positions of the callbacks in the list of hooks.
            logging.warning(
                "%s starts anew: at its position among the Keras callbacks, the checkpoint has "
                "the state of %s. To keep the states, list the callbacks that the run had before "
                "in the same order, and add others after them.",
                _described(own),
                _described(saved),
            )
            # The number of the epoch and its first step belong to the run, not to the callback.
            state = {name: state[name] for name in ("epoch", "first_step") if name in state}
        self._epoch, self._first_step = state["epoch"], state.get("first_step")
        self._has_stopped = state.get("stopped", False)
        # Earlier versions saved the speed, too.
        self._earlier_logs = _without_speed(state.get("train_logs", {}))
        self._validation_logs = _without_speed(state.get("validation_logs", {}))
        self._state.restored = _unpack(state.get("attributes", {"dict": []}), state)
        if self._csv_file is not None:
            self._csv_file.restored_size = state.get("file_size")
        if self._is_training:
            if self._csv_file is not None:
                # Truncate the file to its restored size and open it again.
                self._begin_train()
            self._state.restore()
            # The checkpoint may be from an earlier start with a smaller `patience`.
            self._has_stopped = self._stays_stopped()

    def after_restore(self) -> None:
        # The checkpoint was saved before the epoch began. Call `on_epoch_begin` again, because it
        # may set the learning rate.
        if self._is_training and self._first_step is None:
            self._begin_epoch()

    def _begin_train(self) -> None:
        resumes = self.controller.step > 0
        if self._csv_file is not None:
            self._csv_file.rewind(self.controller.step)
        if not (resumes and isinstance(self.callback, keras.callbacks.BackupAndRestore)):
            self._call("on_train_begin", {})
        self._state.begin()

    def _begin_test(self) -> None:
        if not self._has_ended:
            self._call("on_test_begin", {})

    def _begin_epoch(self) -> None:
        self._first_step = self.controller.step
        if self.controller.steps_per_epoch:
            self._epoch = self.controller.step // self.controller.steps_per_epoch
        self._call("on_epoch_begin", self._epoch, {})

    def _continue_epoch(self) -> None:
        """Continue the epoch of the restored checkpoint, even if all its steps have already run."""
        optimizer: Any = getattr(self._model, "optimizer", None)
        rate = getattr(optimizer, "learning_rate", None)
        before = rate.numpy() if isinstance(rate, keras.Variable) else None
        self._call("on_epoch_begin", self._epoch, {})
        # The checkpoint already contains the changes that `on_epoch_begin` makes to the learning
        # rate and to the callback. Restore both, so that these changes are not made twice.
        if before is not None:
            optimizer.learning_rate = before
        self._state.restore()

    def _next_epoch(self) -> None:
        if not self._is_training or not self._has_trained():
            return
        self._end_epoch()
        is_stopped = self._has_stopped or self._model.stop_training
        if self.controller.step < self.controller.last_step and not is_stopped:
            self._begin_epoch()
        else:
            # Call `on_train_end` now. `after_train` runs only after the last checkpoint is saved.
            self._end_train()

    def _has_trained(self) -> bool:
        """Return whether any step of the current epoch has run."""
        return self.controller.step != self._first_step

    def _end_epoch(self) -> None:
        self._epoch_logs = {**self._train_logs(), **self._validation_logs}
        # Clear the logs, because the next epoch may not report all of these metrics.
        self._validation_logs, self._earlier_logs = {}, {}
        self._call("on_epoch_end", self._epoch, self._epoch_logs)
        self._epoch, self._first_step = self._epoch + 1, None

    def _end_train(self) -> None:
        weights = self._saved_weights()
        self._call("on_train_end", self._epoch_logs)
        if weights != self._saved_weights():
            logging.warning(
                "%s changed the weights in `on_train_end`, but the checkpoint of step %d does not "
                "contain the new weights, because training ended within an epoch. To keep the "
                "best weights in any case, use the hook `best_checkpoint`.",
                type(self.callback).__name__,
                self.controller.step,
            )
        self._is_training = False
        self._has_ended = True

    def _saved_weights(self) -> list[bytes]:
        """Return the model's weights as bytes if the current step is saved, else an empty list."""
        path = getattr(self.controller.checkpoint_manager, "latest_checkpoint", None) or ""
        if not path.endswith(f"-{self.controller.step}"):
            return []
        return [weight.tobytes() for weight in self._model.get_weights()]

    def _batch(self) -> int:
        """Return the index of the step within its epoch."""
        steps_per_epoch = self.controller.steps_per_epoch
        first_step = self.iter if self._first_step is None else self._first_step
        return self.iter % steps_per_epoch if steps_per_epoch else self.iter - first_step

    def _train_logs(self) -> dict[str, float]:
        return {**self._earlier_logs, **_keras_logs(self.controller.train_logs)}

    def _call(self, event: str, *args: Any) -> None:
        averages = ema_optimizer.keeps_averages(runner.optimizer_of(self.trainer))
        if averages and isinstance(self.callback, keras.callbacks.SwapEMAWeights):
            return
        judges = str(getattr(self.callback, "monitor", "")).startswith("val_")
        in_place = averages and judges and event in _AFTER_EVALUATION
        # The model is shared with the callbacks of other hooks, which may have set `stop_training`.
        # Reset it to find out whether this callback sets it, too.
        was_stopped = getattr(self._model, "stop_training", False)
        self._model.stop_training = False
        with self._evaluated_state() if in_place else contextlib.nullcontext():
            getattr(self.callback, event)(*args)
        if self._is_training and self._model.stop_training:
            self._has_stopped = True
            if not was_stopped:
                self._request_stop("set `stop_training`")
        self._model.stop_training = self._model.stop_training or was_stopped

    def _request_stop(self, what: str) -> None:
        """Request that training stop, for the reason "<class of the callback> <what>"."""
        is_early = isinstance(self.callback, keras.callbacks.EarlyStopping)
        name = type(self.callback).__name__
        self.controller.request_stop(f"{'early stopping: ' if is_early else ''}{name} {what}")

    def _stays_stopped(self) -> bool:
        """Return whether the restored run must not continue, because the callback stopped it."""
        if self._has_stopped and isinstance(self.callback, keras.callbacks.EarlyStopping):
            return self.callback.wait >= self.callback.patience
        return self._has_stopped

    @contextlib.contextmanager
    def _evaluated_state(self) -> Iterator[None]:
        """Enter a context in which the model has the weights that evaluations use.

        Weights that the callback sets in the context stay in the model.
        """
        model, optimizer = self._model, runner.optimizer_of(self.trainer)
        with ema_optimizer.evaluated_state(optimizer):
            before = model.get_weights()
            yield
            after = model.get_weights()
        if not all(map(np.array_equal, before, after)):
            model.set_weights(after)
            ema_optimizer.follow_weights(optimizer)

    def detach(self) -> None:
        super().detach()
        self._model = None
        # Call the base method, because an override in the callback may require a model.
        keras.callbacks.Callback.set_model(self.callback, None)

    def _set_model(self) -> None:
        owner = self.trainer or self.controller.evaluator
        model = runner.model_of(owner)
        if not isinstance(model, keras.Model):
            raise errors.ConfigValueError(
                f"{type(self.callback).__name__} requires a Keras model, but the `model` of "
                f"{type(owner).__name__} is {type(model).__name__}. Remove the callback, or set "
                "`model` to a Keras model."
            )
        if optimizer := runner.optimizer_of(owner):
            # Bypass the model's own `__setattr__`, which would add the optimizer to the model's
            # checkpoints.
            object.__setattr__(model, "optimizer", optimizer)
        steps_per_epoch = self.controller.steps_per_epoch
        epochs = -(-self.controller.last_step // steps_per_epoch) if steps_per_epoch else None
        self.callback.set_params({"epochs": epochs, "steps": steps_per_epoch, "verbose": 0})
        self._model = model
        self.callback.set_model(model)

    def _last_step_logs(self) -> dict[str, float]:
        outputs = getattr(self.trainer, "last_step_outputs", None)
        if not isinstance(outputs, Mapping):
            return {}
        strategy = self.controller.strategy
        means = {
            name: strategy.reduce(tf.distribute.ReduceOp.MEAN, value, axis=None)
            for name, value in nested_dict.flatten_nested_dict(outputs, "/").items()
        }
        return _keras_logs(reports.as_numpy(means))

    def _default_interval(self) -> int:
        if not hears_batches(self.callback):
            return 0
        logging.warning(
            "%s has batch-level methods, so it is called at every step. This splits the compiled "
            "loop into single steps and can make training several times slower. Set "
            "`every_n_steps` to call them less often, or to 0 to never call them.",
            type(self.callback).__name__,
        )
        return 1


def _described(identity: Mapping[str, str]) -> str:
    monitor = identity["monitor"]
    return identity["callback"] + (f" with the monitor `{monitor}`" if monitor else "")


class _CsvFile:
    """The file of a `CSVLogger`, which a resumed run truncates to its size in the checkpoint.

    Attributes:
        restored_size: The size of the file according to the restored checkpoint. None if there is
            no such size, or after the file has been truncated.
    """

    def __init__(self, callback: keras.callbacks.CSVLogger) -> None:
        self._callback = callback
        self.restored_size: int | None = None

    def size(self) -> int | None:
        """Return the size to save in a checkpoint; `None` if there is no file yet."""
        path = self._callback.filename
        if self.restored_size is not None or not files.exists(path):
            return self.restored_size
        return files.size(path)

    def rewind(self, step: int) -> None:
        """Remove the rows that were written after the restored checkpoint; later rows are appended.

        Args:
            step: The step of the checkpoint. At step 0, the callback creates a new file.
        """
        path, size, self.restored_size = self._callback.filename, self.restored_size, None
        if step == 0:
            return
        self._callback.append = True
        if size is not None and files.exists(path) and files.size(path) > size:
            files.truncate(path, size)
            logging.info("Removed the rows after step %d from %s.", step, path)


class _CallbackState:
    """The state of a callback: attributes with plain values that have changed during training.

    Attributes:
        has_begun: Whether `on_train_begin` has been called.
        restored: The attributes from the restored checkpoint; empty after `restore` has set them.
    """

    def __init__(self, callback: keras.callbacks.Callback) -> None:
        self._callback = callback
        self._initial: dict[str, Any] = {}
        self.has_begun = False
        self.restored: dict[str, Any] = {}

    def begin(self) -> None:
        """Record the attributes; called after `on_train_begin`."""
        self._initial = copy.deepcopy(self._attributes())
        self.has_begun = True

    def changes(self) -> dict[str, Any]:
        """Return the attributes that have changed since `on_train_begin`."""
        return {
            name: value
            for name, value in self._attributes().items()
            if name not in self._initial or _packed(value) != _packed(self._initial[name])
        }

    def restore(self) -> None:
        """Set the attributes to those in the restored checkpoint."""
        for name, value in copy.deepcopy(self._initial | self.restored).items():
            current = getattr(self._callback, name, None)
            # Skip attributes that were None until Keras set them to a function.
            if _is_plain(current):
                setattr(self._callback, name, _in_container_like(current, value))
        self.restored = {}

    def _attributes(self) -> dict[str, Any]:
        of_config = {
            name
            for cls in type(self._callback).__mro__
            if cls.__module__.startswith("keras.")
            for name in inspect.signature(cls).parameters
        }
        attributes = vars(self._callback)
        own = attributes.keys() - of_config - {"params"}
        return {name: attributes[name] for name in sorted(own) if _is_plain(attributes[name])}


def check_schedules(hooks: Sequence[Hook], optimizer: Any) -> None:
    """Check that no callback sets a learning rate that a schedule determines.

    Args:
        hooks: The hooks of a run.
        optimizer: The optimizer of the trainer, if it has one.

    Raises:
        errors.ConfigValueError: A callback sets such a rate, which would fail in Keras.
    """
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    rate = getattr(optimizer, "_learning_rate", None)
    if not isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return
    setters = (keras.callbacks.ReduceLROnPlateau, keras.callbacks.LearningRateScheduler)
    for hook in hooks:
        if isinstance(hook, KerasCallback) and isinstance(hook.callback, setters):
            raise errors.ConfigValueError(
                f"The hook `keras_callback` runs {type(hook.callback).__name__}, which sets the "
                f"learning rate, but the optimizer has the schedule {type(rate).__name__}. Set "
                "`trainer.optimizer_config.learning_rate.type` to `constant` and remove `warmup`, "
                "or remove the callback."
            )


_PLAIN = (type(None), bool, int, float, str, np.generic)


def _is_plain(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(_is_plain(key) and _is_plain(part) for key, part in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, np.ndarray | np.generic):
        # Arrays of objects would be pickled, and NumPy can't save the dtypes of other libraries.
        return value.dtype.kind in "biufcSU"
    return isinstance(value, _PLAIN)


def _in_container_like(current: Any, value: Any) -> Any:
    """Convert a restored dictionary to the `dict` subclass of the current value, if any."""
    if not isinstance(current, dict) or type(value) is not dict:
        return value
    # Copy the current dictionary to keep, for example, the `default_factory` of a `defaultdict`.
    container = copy.copy(current)
    container.clear()
    container.update(value)
    return container


def _pack(value: Any, arrays: dict[str, Any]) -> Any:
    """Return a plain value in JSON form, and add its arrays and NumPy scalars to `arrays`."""
    if isinstance(value, Mapping):
        return {"dict": [[_pack(k, arrays), _pack(v, arrays)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_pack(part, arrays) for part in value]}
    if isinstance(value, np.ndarray | np.generic):
        name = f"array_{len(arrays)}"
        arrays[name] = np.asarray(value)
        return {"array": name, "is_scalar": isinstance(value, np.generic)}
    return value


def _unpack(packed: Any, arrays: Mapping[str, Any]) -> Any:
    """Return the value that `_pack` packed."""
    if not isinstance(packed, dict):
        return packed
    if "array" in packed:
        array = arrays[packed["array"]]
        return array[()] if packed["is_scalar"] else array
    if "dict" in packed:
        return {_unpack(k, arrays): _unpack(v, arrays) for k, v in packed["dict"]}
    ((kind, parts),) = packed.items()
    values = [_unpack(part, arrays) for part in parts]
    return tuple(values) if kind == "tuple" else values


def _packed(value: Any) -> Any:
    """Return a representation that `==` can compare even if the value contains arrays."""
    arrays: dict[str, Any] = {}
    packed = _pack(value, arrays)
    return packed, [(array.dtype, array.shape, array.tobytes()) for array in arrays.values()]


def _keras_logs(logs: Mapping[str, Any]) -> dict[str, float]:
    flat = nested_dict.flatten_nested_dict(telemetry.numbers(logs), "/")
    for name in _LOSSES:
        if name in flat:
            flat.setdefault("loss", flat[name])
            del flat[name]
    return _without_speed(flat)


def _without_speed(logs: Mapping[str, float]) -> dict[str, float]:
    """Return the logs without the measured speed, which differs between equal runs.

    If a callback kept it, as `History` does, the checkpoints of equal runs would differ.
    """
    return {name: value for name, value in logs.items() if "steps_per_second" not in name}
