"""Base class of multi-task models, which hold one model per task."""

from typing import Any

import keras
import tensorflow as tf

from official_lite.core import model_building

__all__ = ["MultiTaskBaseModel"]


class MultiTaskBaseModel(tf.Module):
    """Base class of modules that hold a model for each task; the models may share layers.

    ::

        class MyModel(MultiTaskBaseModel):
            def __init__(self, **kwargs):
                self.encoder = keras.layers.Dense(8)      # before `super().__init__`
                super().__init__(**kwargs)

            def _instantiate_sub_tasks(self):
                return {"a": HeadModel(self.encoder), "b": HeadModel(self.encoder)}

    An optional `checkpoint_items` attribute, a dictionary, names parts that a checkpoint stores
    under separate names, so that another model can load them.

    Args:
        **kwargs: Arguments of `tf.Module`.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._sub_tasks = self._instantiate_sub_tasks()

    def _instantiate_sub_tasks(self) -> dict[str, keras.Model]:
        """Return the model of each task, by task name; subclasses override this method."""
        raise NotImplementedError(
            f"{type(self).__name__} has no `_instantiate_sub_tasks`. Override it to return a dict "
            "of Keras models by task name."
        )

    @property
    def sub_tasks(self) -> dict[str, keras.Model]:
        """The model of each task, by task name."""
        return self._sub_tasks

    # Override the properties of `tf.Module`, which does not find the variables of Keras 3 layers.

    @property
    def variables(self) -> tuple[Any, ...]:
        """All variables of the models and of all other attributes, without duplicates."""
        found = [
            v for part in self._parts() for v in (part.variables if _is_layer(part) else [part])
        ]
        return tuple({id(variable): variable for variable in found}.values())

    @property
    def trainable_variables(self) -> tuple[Any, ...]:
        """The variables that training may change."""
        # Get the trainable variables from the layers: a frozen layer returns no trainable
        # variables, even if `trainable` is True for some of its variables.
        trainable = {
            id(variable)
            for part in self._parts()
            for variable in (
                part.trainable_variables if _is_layer(part) else [part] if part.trainable else []
            )
        }
        return tuple(v for v in self.variables if id(v) in trainable)

    @property
    def non_trainable_variables(self) -> tuple[Any, ...]:
        """The variables that training does not change."""
        trainable = {id(v) for v in self.trainable_variables}
        return tuple(v for v in self.variables if id(v) not in trainable)

    def initialize(self) -> None:
        """Load pretrained weights; called if there is no checkpoint yet.

        Subclasses may override this method. By default it does nothing.
        """

    def build(self) -> None:
        """Build the models that define `inputs`; the trainer builds the others from data."""
        for model in self.sub_tasks.values():
            inputs = getattr(model, "inputs", None)
            if inputs is not None and not model_building.has_variables(model):
                model(inputs)

    def _parts(self) -> list[Any]:
        # Descend into modules and collections, but not into layers, which list their own variables.
        kinds = keras.layers.Layer | keras.Variable | tf.Variable
        return list(self._flatten(predicate=lambda value: isinstance(value, kinds)))


def _is_layer(part: Any) -> bool:
    return isinstance(part, keras.layers.Layer)
