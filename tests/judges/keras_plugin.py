"""A pytest plugin that replaces Keras classes by those of `official_lite` in Keras's own tests.

    python -m pytest -p tests.judges.keras_plugin keras/src/optimizers/adam_test.py

* Each optimizer class becomes the class that `performance` makes of it: with the update
  steps and the gradients of `distributed_gradients`.
* Each schedule that has a class `…WithOffset` becomes that class, with an offset of 0.
* With `--fit-with-controller`, `Model.fit` trains with a `Controller`, and its callbacks run in
  `hooks.KerasCallback`.

Nothing of Keras is stored: the tests are read from the installed wheel.
"""

import importlib
import inspect
import math
import pkgutil
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import orbit, telemetry
from official_lite.modeling import distributed_gradients
from official_lite.modeling.optimization import lr_schedule
from official_lite.orbit import hooks


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fit-with-controller", action="store_true")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "requires_trainable_backend: a mark of Keras")
    replaced = {
        cls: distributed_gradients._distributed_class(cls)
        for cls in _classes(keras.optimizers, keras.optimizers.Optimizer)
        if not hasattr(cls, "inner_optimizer") and cls is not keras.optimizers.Optimizer
    }
    with_offset = {
        cls.base_lr_class: _with_signature_of_keras(cls)
        for cls in _classes(lr_schedule, keras.optimizers.schedules.LearningRateSchedule)
        if hasattr(cls, "base_lr_class")
    }
    _replace(replaced | with_offset)
    if config.getoption("fit_with_controller"):
        keras.Model.fit = fit


def _classes(module: Any, base: type) -> list[type]:
    found = vars(module).values()
    return [one for one in found if isinstance(one, type) and issubclass(one, base)]


def _with_signature_of_keras(cls: type) -> type:
    """Return a subclass that also accepts the positional arguments of the Keras class."""
    signature = inspect.signature(cls.base_lr_class.__init__)

    def create(self: Any, *args: Any, offset: int = 0, **kwargs: Any) -> None:
        named = dict(signature.bind(self, *args, **kwargs).arguments)
        named.pop("self")
        cls.__init__(self, offset=offset, **named)

    new = type(cls.base_lr_class.__name__, (cls,), {"__module__": __name__, "__init__": create})
    return keras.saving.register_keras_serializable("judged")(new)


def _replace(classes: Mapping[type, type]) -> None:
    """Replace the classes in every Keras module and table that refers to them."""
    packages = ["keras", "keras.optimizers", "keras.optimizers.schedules", "keras.src.optimizers"]
    packages += [
        f"{name}.{found.name}"
        for name in ("keras.src.optimizers", "keras.src.optimizers.schedules")
        for found in pkgutil.iter_modules(importlib.import_module(name).__path__)
        if not found.name.endswith("_test")
    ]
    packages.append("keras.src.optimizers.schedules")
    for module in map(importlib.import_module, packages):
        for name, value in list(vars(module).items()):
            if isinstance(value, type) and value in classes:
                setattr(module, name, classes[value])
    from keras.src import optimizers

    optimizers.ALL_OBJECTS = {classes.get(cls, cls) for cls in optimizers.ALL_OBJECTS}
    by_name = optimizers.ALL_OBJECTS_DICT
    by_name.update({name: classes.get(cls, cls) for name, cls in by_name.items()})


class _NoWriter(telemetry.Writer):
    def write(self, record: telemetry.Record) -> None:
        del record


class _Fitting(orbit.StandardTrainer, orbit.StandardEvaluator):
    """A trainer and evaluator that call `train_step` and `test_step` of a compiled model."""

    def __init__(self, model: keras.Model, data: tf.data.Dataset, validation: Any) -> None:
        self.model = model
        self.optimizer = model.optimizer
        self.global_step = orbit.utils.create_global_step()
        orbit.StandardTrainer.__init__(self, data.repeat())
        orbit.StandardEvaluator.__init__(self, data if validation is None else validation)

    def train_loop_begin(self) -> None:
        self.model.reset_metrics()

    def train_step(self, iterator: Any) -> dict[str, Any]:
        run = self.model.distribute_strategy.run
        logs = run(self.model.train_step, args=(next(iterator),))
        self.global_step.assign_add(1)
        return logs

    def train_loop_end(self) -> dict[str, Any]:
        return self.model.get_metrics_result()

    def eval_begin(self) -> None:
        self.model.reset_metrics()

    def eval_step(self, iterator: Any) -> None:
        self.model.distribute_strategy.run(self.model.test_step, args=(next(iterator),))

    def eval_end(self) -> dict[str, Any]:
        return self.model.get_metrics_result()


def fit(
    self: keras.Model,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: Any = None,
    callbacks: Any = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool = True,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_freq: int = 1,
) -> keras.callbacks.History:
    """Train like `Model.fit`, but with a controller, a trainer, and each callback in a hook."""
    del verbose, shuffle
    if validation_split:
        kept = math.ceil(len(x) * (1 - validation_split))
        x, y, validation_data = x[:kept], y[:kept], (x[kept:], y[kept:])
    data = _batches((x, y), batch_size)
    validation = None if validation_data is None else _batches(validation_data, batch_size)
    self._symbolic_build(data_batch=next(iter(data)))
    trainer = _Fitting(self, data, validation)
    steps = steps_per_epoch or int(data.cardinality())
    trainer.global_step.assign(initial_epoch * steps)
    if callbacks is not None and not isinstance(callbacks, list | tuple):
        callbacks = [callbacks]
    history = keras.callbacks.History()
    controller = orbit.Controller(
        global_step=trainer.global_step,
        trainer=trainer,
        evaluator=trainer,
        steps_per_loop=steps,
        steps_per_epoch=steps,
        hooks=[hooks.KerasCallback(one) for one in [*(callbacks or ()), history]],
        writers=[_NoWriter()],
    )
    self.history = history
    if validation is None:
        controller.train(epochs * steps)
    else:
        controller.train_and_evaluate(epochs * steps, eval_interval=steps * validation_freq)
    # The `fit` of Keras also makes this call after its loop.
    self.optimizer.finalize_variable_values(self.trainable_weights)
    return history


def _batches(data: Any, batch_size: int | None) -> tf.data.Dataset:
    if isinstance(data[0], tf.data.Dataset):
        return data[0]
    floats = tuple(np.asarray(one, keras.config.floatx()) for one in data)
    return tf.data.Dataset.from_tensor_slices(floats).batch(batch_size or 32)
