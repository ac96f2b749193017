"""A model of several tasks, made of one model for each."""

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from official_lite.core import model_building

__all__ = ["MultiTaskBaseModel"]


class MultiTaskBaseModel(tf.Module):
    """Holds a model for each task; these may share layers.

    ::

        class MyModel(MultiTaskBaseModel):
            def __init__(self, **kwargs):
                self.encoder = keras.layers.Dense(8)      # before `super().__init__`
                super().__init__(**kwargs)

            def _instantiate_sub_tasks(self):
                return {"a": HeadModel(self.encoder), "b": HeadModel(self.encoder)}

    A `checkpoint_items` attribute, a dictionary, names parts that a checkpoint shall hold under
    names of their own, so that another model can load them.
    """

    def __init__(self, **kwargs: Any) -> None:
        """Makes the models; `kwargs` go to `tf.Module`."""
        super().__init__(**kwargs)
        self._sub_tasks = self._instantiate_sub_tasks()

    def _instantiate_sub_tasks(self) -> dict[str, keras.Model]:
        """To be overridden: the model of each task, by the task's name."""
        # Not abstract: `tf.Module` has a metaclass of its own, which is none of `abc`'s.
        raise NotImplementedError(
            f"{type(self).__name__} has no `_instantiate_sub_tasks`. Override it to return a Keras "
            "model for each task, by the task's name."
        )

    @property
    def sub_tasks(self) -> dict[str, keras.Model]:
        """The model of each task, by the task's name."""
        return self._sub_tasks

    # `tf.Module` looks for `tf.Variable`s, of which a Keras 3 layer has none to show.

    @property
    def variables(self) -> tuple[Any, ...]:
        """Every variable of the models and of all other attributes, each of them once."""
        return _distinct(v for part in self._parts() for v in _variables_of(part))

    @property
    def trainable_variables(self) -> tuple[Any, ...]:
        """Those among `variables` that training may change."""
        trainable = {id(v) for part in self._parts() for v in _trainable_variables_of(part)}
        return tuple(v for v in self.variables if id(v) in trainable)

    @property
    def non_trainable_variables(self) -> tuple[Any, ...]:
        """The others."""
        trainable = {id(v) for v in self.trainable_variables}
        return tuple(v for v in self.variables if id(v) not in trainable)

    def initialize(self) -> None:
        """To be overridden: loads pretrained weights. Called if there is no checkpoint yet."""

    def build(self) -> None:
        """Builds those models that know their `inputs`. The trainer builds the rest from data."""
        for model in self.sub_tasks.values():
            inputs = getattr(model, "inputs", None)
            if inputs is not None and not model_building.has_variables(model):
                model(inputs)

    def _parts(self) -> list[Any]:
        # Into modules and collections, but not into layers: these know their variables themselves.
        return list(self._flatten(predicate=_is_part))


def _is_part(value: Any) -> bool:
    return isinstance(value, keras.layers.Layer | keras.Variable | tf.Variable)


def _variables_of(part: Any) -> list[Any]:
    return list(part.variables) if isinstance(part, keras.layers.Layer) else [part]


def _trainable_variables_of(part: Any) -> list[Any]:
    if isinstance(part, keras.layers.Layer):
        # Not the `trainable` of each variable: a frozen layer leaves that as it was.
        return list(part.trainable_variables)
    return [part] if part.trainable else []


def _distinct(variables: Iterable[Any]) -> tuple[Any, ...]:
    return tuple({id(variable): variable for variable in variables}.values())
