"""The contents of a run's checkpoints: the state of the trainer, and the description of the run."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_lite import orbit
from official_lite.checkpoint import keras2_converter, model_state, saved_graph
from official_lite.common import errors, keras_variables, nests
from official_lite.core import config_definitions
from official_lite.modeling import distributed_gradients, replica_state
from official_lite.modeling.optimization import ema_optimizer
from official_lite.orbit import attributes
from official_lite.run import run_record

# Older versions of the library saved only those attributes of trainers and tasks that are instances
# of these classes.
_ALWAYS_SAVED = (
    keras.Layer,
    keras.optimizers.Optimizer,
    keras.Variable,
    tf.Variable,
    tf.Module,
    tf.random.Generator,
)


def add_attributes(
    checkpoint: tf.train.Checkpoint, trainer: orbit.AbstractTrainer, *, trains: bool = True
) -> None:
    """Add the stateful attributes of a trainer and its tasks to a checkpoint.

    These are all objects that TensorFlow tracks, such as Keras models, layers and optimizers,
    variables, random generators, lookup tables, modules and `tf.train.Checkpoint`s, also in lists
    and dictionaries, unless the checkpoint already has them. A trainer with a second model and a
    second optimizer therefore only needs to keep them as attributes. Metrics are excluded, because
    they are empty whenever a checkpoint is saved. Iterators are not saved; a warning names each of
    them. A later call also adds the attributes that have been set since.

    Args:
        checkpoint: The checkpoint of the trainer.
        trainer: The trainer, with all its attributes set.
        trains: Whether the trainer will train.

    Raises:
        errors.ConfigValueError: If the trainer trains and an optimizer or a model has no variables
            yet, so that a resumed run could not restore them.
    """
    owners = {"trainer_attributes": trainer, **attributes.tasks_of(trainer)}
    # Remove what an earlier call added, because `find_state` skips objects that are in the
    # checkpoint.
    for name in owners:
        attributes.replace(checkpoint, name, None)
    known = attributes.parts_of(checkpoint)
    for name, owner in owners.items():
        own = attributes.attributes_of(owner)
        found = attributes.find_state(own, known, trains=trains)
        if trains:
            for attribute, items in (found or {}).items():
                _require_variables(f"{type(owner).__name__}.{attribute}", items, owner is trainer)
            attributes.warn_of_iterators(type(owner).__name__, own)
        attributes.replace(checkpoint, name, found)


def _require_variables(where: str, items: nests.Nest, is_of_trainer: bool) -> None:
    """Raise an error for an optimizer, or a trainer's model, that has no variables yet.

    An unbuilt model of a task is allowed: a model that only augments examples never has variables.
    """
    attribute = where.partition(".")[2]
    place = "`__init__`, after `super().__init__`" if is_of_trainer else "`build_model`"
    for value in tf.nest.flatten(items):
        if isinstance(value, keras.optimizers.Optimizer):
            call = f"self.{attribute} = optimizer_factory.prepare_optimizer(optimizer, other_model)"
            advice = f"Build it for the weights that it trains, in {place}: `{call}`."
        elif isinstance(value, keras.Model) and is_of_trainer:
            advice = f"Call `self.{attribute}.build(input_shape)` in {place}."
        else:
            continue
        if not value.built:
            raise errors.ConfigValueError(
                f"`{where}` has no variables yet, so a resumed run could not restore it. {advice}"
            )


def find_unneeded(
    checkpoint: tf.train.Checkpoint, optimizer: keras.optimizers.Optimizer | None
) -> Iterator[Any]:
    """Yield the variables of a checkpoint that an evaluation does not read.

    These are the states of random generators and of optimizers, except for averaged weights, which
    are evaluated if the optimizer keeps them.

    Args:
        checkpoint: The checkpoint of a trainer.
        optimizer: The optimizer of the trainer.
    """
    needed = [average for _, average in ema_optimizer.weights_and_averages(optimizer)]
    average = ema_optimizer.get_moving_average(optimizer)
    if average is not None:
        # Also require the iterations of the inner optimizer, so that a checkpoint whose optimizer
        # kept no average is rejected: such a checkpoint lacks them.
        needed.append(average.inner_optimizer.iterations)
    needed_ids = {id(variable) for variable in needed}
    for part in tf.train.TrackableView(checkpoint).descendants():
        if isinstance(part, keras.optimizers.Optimizer):
            # The optimizer's children include the model's weights, so take only the optimizer's own
            # variables.
            yield from (v for v in part.variables if id(v) not in needed_ids)
        elif _is_random_state(part):
            yield part


def find_new_kinds(checkpoint: tf.train.Checkpoint) -> Iterator[Any]:
    """Yield the weights and attributes in a checkpoint that older versions did not save.

    Other state is left out, because `fallback.require_complete` does not check it.
    """
    for name, item in model_state.find_new_items(checkpoint):
        if name == "hidden_weights":
            yield from item
    for name, part in tf.train.TrackableView.children(checkpoint).items():
        if name.startswith(saved_graph.ATTRIBUTES):
            yield from _below_new_kinds(part)


def _below_new_kinds(part: Any) -> Iterator[Any]:
    if isinstance(part, _ALWAYS_SAVED):
        return
    if isinstance(part, Mapping | list):
        for child in tf.train.TrackableView.children(part).values():
            yield from _below_new_kinds(child)
    else:
        yield from keras_variables.variables_of(part)


@contextlib.contextmanager
def undone_by_stop(checkpoint: tf.train.Checkpoint) -> Iterator[None]:
    """Restore the state from before an evaluation if a stop signal interrupts the evaluation.

    The resumed run repeats the evaluation, which must begin with the same state of random
    generators and of recurrent layers with `stateful=True`.

    Args:
        checkpoint: The checkpoint that the run saves after the signal.
    """
    found = [
        part for part in tf.train.TrackableView(checkpoint).descendants() if _is_random_state(part)
    ]
    groups = model_state.groups_of_items(checkpoint)
    recurrent = [state for items in groups for state in items.get("recurrent_state", ())]
    states = list({id(state): state for state in [*found, *recurrent]}.values())
    copies = [copy for state in states for copy in keras_variables.local_values(state)]
    values = [copy.read_value() for copy in copies]
    try:
        yield
    except errors.PreemptedError:
        for copy, value in zip(copies, values, strict=True):
            copy.assign(value)
        raise


def _is_random_state(part: Any) -> bool:
    return keras_variables.is_variable(part) and replica_state.is_random_state(
        keras_variables.raw(part)
    )


class RunDescription:
    """Callable that describes a run as a JSON-serializable dictionary.

    The description is computed once per config and reused for all saves.

    Args:
        trainer: The trainer, whose model and optimizer are described. Its constant hyperparameters
            must still have the values from the config.
        strategy: The strategy of the trainer.
        get_params: A function that returns the current config, which changes when epochs are
            resolved or an execution mode is chosen.
    """

    def __init__(
        self,
        trainer: orbit.AbstractTrainer,
        strategy: tf.distribute.Strategy,
        get_params: Callable[[], Any],
    ) -> None:
        self._trainer = trainer
        self._strategy = strategy
        self._get_params = get_params
        self._described: tuple[Any, dict[str, Any]] | None = None
        # Read the values now, because callbacks and hooks may change them during training.
        self._hyperparameters = [
            {name: float(variable.numpy()) for name, variable in variables.items()}
            for variables in _hyperparameters(trainer)
        ]

    def __call__(self) -> dict[str, Any]:
        params = self._get_params()
        if self._described is None or self._described[0] is not params:
            self._described = (params, self._describe(params))
        return self._described[1]

    def follow_hyperparameters(self, saved: Mapping[str, Any]) -> None:
        """Set each constant hyperparameter that has changed in the config, after a restore.

        Keras keeps a constant learning rate in a variable, and `keras2` does so for all
        hyperparameters, so a restore undoes a change of the config. If the config is unchanged, the
        restored value stays, because a callback or a hook may have set it.

        Args:
            saved: The description in the commit file of the restored checkpoint.
        """
        # Earlier versions described only the learning rates.
        rates = [{"learning_rate": rate} for rate in saved.get("learning_rates", ())]
        was = saved.get("hyperparameters", rates)
        found = _hyperparameters(self._trainer)
        for variables, olds, news in zip(found, was, self._hyperparameters, strict=False):
            for name, new in news.items():
                old = olds.get(name)
                if old is not None and old != new:
                    logging.info(
                        "The hyperparameter `%s` is set to %g, because the config has changed it "
                        "from %g since the checkpoint was saved. The restored value was %g.",
                        name,
                        new,
                        old,
                        float(variables[name].numpy()),
                    )
                    variables[name].assign(new)

    def _describe(self, params: config_definitions.ExperimentConfig) -> dict[str, Any]:
        trainer = self._trainer
        model, optimizer = orbit.runner.model_of(trainer), orbit.runner.optimizer_of(trainer)
        return {
            **model_state.describe(model, optimizer),
            "hyperparameters": self._hyperparameters,
            "global_batch_size": getattr(trainer, "global_batch_size", None),
            "num_replicas": self._strategy.num_replicas_in_sync,
            "virtual_replicas": params.trainer.virtual_replicas,
            "execution": getattr(trainer, "execution", None),
            "config_sha256": run_record.config_sha256(params),
            "versions": run_record.versions(),
        }


def _hyperparameters(trainer: orbit.AbstractTrainer) -> list[dict[str, keras.Variable]]:
    """Return the constant hyperparameters of each innermost optimizer that are variables."""
    optimizer = orbit.runner.optimizer_of(trainer)
    if optimizer is None:
        return []
    innermost = distributed_gradients.innermost_optimizers(optimizer)
    return [keras2_converter.hyperparameters(one) for one in innermost]
