"""The stateful attributes of trainers, tasks and hooks, which checkpoints contain."""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from official_lite.checkpoint import model_state
from official_lite.common import keras_variables, terminal
from official_lite.modeling.optimization import gradient_accumulator
from official_lite.orbit import runner

# Layers, optimizers, variables, modules, random generators, lookup tables and
# `tf.train.Checkpoint` all derive from one of these classes.
_STATE = (tf.__internal__.tracking.Trackable, keras.Variable)

_NOT_STATE = (
    runner.AbstractTrainer,
    runner.AbstractEvaluator,
    tf.data.Dataset,
    # Saving an iterator would save all examples in its buffers.
    tf.data.Iterator,
    tf.distribute.DistributedDataset,
    tf.distribute.DistributedIterator,
    tf.summary.SummaryWriter,
    tf.types.experimental.GenericFunction,
    tf.types.experimental.ConcreteFunction,
    # A gradient sink has no state.
    gradient_accumulator.GradientSink,
)


def parts_of(checkpoint: tf.train.Checkpoint) -> set[int]:
    """Return the ids of all objects that a checkpoint contains."""
    return {id(part) for part in tf.train.TrackableView(checkpoint).descendants()}


def tasks_of(trainer: runner.AbstractTrainer) -> dict[str, Any]:
    """Return the tasks of a trainer by the names under which their attributes are saved."""
    task = getattr(trainer, "task", None)
    if task is not None:
        return {"task_attributes": task}
    tasks = getattr(getattr(trainer, "multi_task", None), "tasks", {})
    return {f"task_attributes_{name}": one for name, one in tasks.items()}


def attributes_of(owner: object) -> dict[str, Any]:
    """Return an object's attributes, except the duplicates that TensorFlow tracks as `_self_*`."""
    attributes = getattr(owner, "__dict__", {})
    return {name: value for name, value in attributes.items() if not name.startswith("_self_")}


def find_state(value: object, known: set[int], *, trains: bool = True) -> Any:
    """Return the stateful objects in a value that are not yet `known`; None if there are none.

    Instances of a class with `is_checkpoint_state = False`, such as tasks, are left out.

    Args:
        value: An attribute, or a list or dictionary of them.
        known: The ids of the objects that the checkpoint already contains.
        trains: Whether to include the states of recurrent layers with `stateful=True`, which
            evaluations do not restore.
    """
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        found = {str(key): find_state(part, known, trains=trains) for key, part in value.items()}
        return {key: items for key, items in found.items() if items is not None} or None
    if isinstance(value, keras.random.SeedGenerator):
        value = value.state
    if id(value) in known or not isinstance(value, _STATE):
        return None
    if isinstance(value, _NOT_STATE) or not getattr(type(value), "is_checkpoint_state", True):
        return None
    recurrent = model_state.recurrent_items(value) if trains else {}
    items = {"value": value, **model_state.hidden_items(value), **recurrent}
    variables = [v for item in items.values() for v in keras_variables.variables_of(item)]
    is_known = bool(variables) and all(id(v) in known for v in variables)
    return None if is_known else items


def replace(checkpoint: tf.train.Checkpoint, name: str, state: Mapping[str, Any] | None) -> None:
    """Replace an item of a checkpoint; remove it if there is no state."""
    if hasattr(checkpoint, name):
        delattr(checkpoint, name)
    if state:
        setattr(checkpoint, name, state)


def warn_of_iterators(owner: str, attributes: Mapping[str, Any]) -> None:
    """Warn about each iterator in the attributes, because its position is not saved."""
    for name, value in attributes.items():
        if _has_iterator(value):
            terminal.warn_once(
                "`%s.%s` is an iterator, whose position is not saved, so a resumed run reads its "
                "data from the beginning. Read this data through the iterator passed to "
                "`train_step` instead: combine both datasets in `task.build_inputs` with "
                "`tf.data.Dataset.zip`.",
                owner,
                name,
            )


def _has_iterator(value: object) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_has_iterator, value))
    if isinstance(value, Mapping):
        return any(map(_has_iterator, value.values()))
    return isinstance(value, tf.data.Iterator | tf.distribute.DistributedIterator)
