"""The base class of tasks: the model, inputs, losses and metrics that one replica computes."""

import abc
import difflib
import functools
import inspect
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_lite.checkpoint import warm_start
from official_lite.common import errors, nested_dict, nests, plugins, terminal, user_code
from official_lite.core import config_definitions, step_checks, step_metrics
from official_lite.modeling import distributed_gradients, hyperparams, performance
from official_lite.modeling.hyperparams import base_config
from official_lite.modeling.optimization import adamw, optimizer_factory

__all__ = [
    "OptimizationConfig",
    "RuntimeConfig",
    "Task",
    "choose_init_checkpoint",
    "find_init_checkpoint",
    "load_averages",
    "load_optimizer",
    "outputs_as_columns",
    "split_batch",
    "split_features_and_labels",
    "warn_of_overridden_step",
]

OptimizationConfig = config_definitions.OptimizationConfig
RuntimeConfig = config_definitions.RuntimeConfig

# Maps methods of Lightning and similar frameworks to the `Task` methods that replace them.
_LIGHTNING = {
    "training_step": "train_step",
    "test_step": "validation_step",
    "forward": "inference_step",
    "configure_optimizers": "create_optimizer",
    "train_dataloader": "build_inputs",
    "val_dataloader": "build_inputs",
    "compute_loss": "build_losses",
    "create_model": "build_model",
}

# Op types that `_is_softmax` skips, because their output has the same values as their input.
_KEEP_VALUES = ("Identity", "Cast", "Reshape")
# The models that `_warn_of_unreported` has already checked.
_unreported: weakref.WeakSet[keras.Model] = weakref.WeakSet()
# For each task, maps a value of `init_checkpoint` to the path of the checkpoint chosen for it.
_init_checkpoints: weakref.WeakKeyDictionary["Task", dict[str, str]] = weakref.WeakKeyDictionary()


class Task(tf.Module, metaclass=abc.ABCMeta):
    """Base class of tasks, which define training and evaluation on a single replica.

    A task defines what to compute, but not where or when. The `Trainer` runs its steps on every
    replica and the `Controller` decides when to run them. Override the `build_*` methods for
    ordinary supervised models, and `train_step`, `validation_step` or `predict_step` for anything
    else.

    ::

        model = task.build_model()                      once, in the strategy's scope
        task.initialize(model)                          when there is no checkpoint to resume from
        task.build_inputs(params.train_data, context)   once per input pipeline
        every step:        task.train_step(inputs, model, optimizer, metrics)
        every evaluation:  task.validation_step(inputs, model, metrics)    on each batch
                           task.aggregate_logs(state, step_outputs)        on the host
                           task.reduce_aggregated_logs(state)              at the end
        every prediction:  task.predict_step(inputs, model)                on each batch

    Args:
        params: The task's config, usually a `TaskConfig`.
        logging_dir: A directory in which the task may write its own files.
        name: The name of the task.
    """

    # The key of the loss in the logs that a step returns.
    loss = "loss"

    # Whether the metrics or the compiled loss expect one score per class. `Predictor` sets this
    # attribute before it predicts.
    scores_classes = False

    # Checkpoints save the attributes of the trainer's own tasks only. Other tasks that a trainer, a
    # task or a hook refers to are not saved.
    is_checkpoint_state = False

    _is_loss_checked = False

    def __init__(
        self,
        params: config_definitions.TaskConfig,
        logging_dir: str | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        _warn_of_lookalikes(type(self))
        step_metrics.install()
        self._task_config = params
        self._logging_dir = logging_dir or ""

    @property
    def task_config(self) -> Any:
        """The config from which the task was created."""
        return self._task_config

    @property
    def logging_dir(self) -> str:
        """The directory for the task's own files; empty for the working directory."""
        return self._logging_dir

    @classmethod
    def create_optimizer(
        cls,
        optimizer_config: OptimizationConfig,
        runtime_config: RuntimeConfig | None = None,
        dp_config: base_config.Config | None = None,
    ) -> keras.optimizers.Optimizer:
        """Build the optimizer, with loss scaling if the runtime computes in float16.

        Raises:
            errors.ConfigValueError: If `dp_config` is given. The Model Garden drew its noise per
                replica and clipped the gradients of whole batches, which gives no privacy
                guarantee.
        """
        if dp_config is not None:
            raise errors.ConfigValueError(
                "`differential_privacy_config` is not supported; remove it from the task."
            )
        factory = optimizer_factory.OptimizerFactory(optimizer_config)
        optimizer = factory.build_optimizer(factory.build_learning_rate())
        if runtime_config is None:
            return optimizer
        precision = runtime_config.mixed_precision_dtype
        return performance.configure_optimizer(
            optimizer,
            use_float16=precision in ("float16", "mixed_float16"),
            loss_scale=runtime_config.loss_scale,
        )

    def initialize(self, model: keras.Model) -> None:
        """Load `task_config.init_checkpoint`, if it is set, into a new model.

        The trainer calls this method only if the run has no checkpoint of its own. If the model
        has `checkpoint_items`, they define the parts that can be loaded; otherwise the whole model
        is loaded. The config can select some of the parts (`init_checkpoint_modules`), and can
        load only the matching weights from a checkpoint of another model
        (`init_checkpoint_strict: false`).

        Raises:
            errors.CheckpointError: If the checkpoint does not exist, lacks a weight of the model,
                or has none of the requested weights.
        """
        config = self.task_config
        path = hyperparams.get_by_path(config, "init_checkpoint", "")
        if not path:
            logging.info(
                "Training starts from random weights: `task.init_checkpoint` is not set.",
                extra=terminal.DETAIL,
            )
            return
        found = find_init_checkpoint(self, path)
        if found is None:
            raise errors.CheckpointError(
                f"`task.init_checkpoint` is {path!r}, which contains no checkpoint."
                f"{warm_start.remedy(path)}"
            )
        warm_start.load_weights(
            model,
            found,
            modules=hyperparams.get_by_path(config, "init_checkpoint_modules", warm_start.ALL),
            strict=hyperparams.get_by_path(config, "init_checkpoint_strict", True),
        )

    def build_model(self) -> keras.Model:
        """Create the model, in the strategy's scope. The model may still be unbuilt."""
        # As in the Model Garden, this method is not abstract, because a trainer may be given a
        # model that was built elsewhere.
        raise NotImplementedError(
            f"{type(self).__name__} has no `build_model`. Override it to return a Keras model."
        )

    @abc.abstractmethod
    def build_inputs(
        self,
        params: config_definitions.DataConfig,
        input_context: tf.distribute.InputContext | None = None,
    ) -> tf.data.Dataset:
        """Create the dataset of one input pipeline, with batches for one replica.

        Args:
            params: The `DataConfig` of the training or the validation data.
            input_context: Identifies the pipeline; its `get_per_replica_batch_size` divides the
                global batch size by the number of replicas. None if there is only one pipeline.
        """

    @user_code.not_converted
    def build_losses(
        self,
        labels: nests.Nest,
        model_outputs: nests.Nest,
        aux_losses: Sequence[tf.Tensor] | None = None,
    ) -> tf.Tensor:
        """Return the loss of a batch, a scalar.

        The default implementation returns the sum of `aux_losses`.

        Args:
            labels: The labels of the batch.
            model_outputs: The outputs of the model.
            aux_losses: `model.losses`: regularization and losses added by layers.
        """
        del labels, model_outputs
        if type(self).build_losses is Task.build_losses and not aux_losses:
            terminal.warn_once(
                "%s has no `build_losses`, so its loss is 0 and the model learns nothing. Override "
                "it to return the loss of a batch.",
                type(self).__name__,
            )
        return _total(aux_losses or ())

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        """Build the streaming metrics of training or evaluation."""
        del training
        return []

    @user_code.not_converted
    def process_metrics(
        self,
        metrics: Sequence[keras.metrics.Metric],
        labels: nests.Nest,
        model_outputs: nests.Nest,
        **kwargs: Any,
    ) -> None:
        """Update the metrics of `build_metrics` with a batch."""
        del kwargs
        step_checks.check_class_labels(metrics, labels, model_outputs, type(self).__name__)
        for metric in metrics:
            user_code.converted(metric.update_state)(labels, model_outputs)

    def process_compiled_metrics(
        self,
        compiled_metrics: keras.metrics.Metric,
        labels: nests.Nest,
        model_outputs: nests.Nest,
        **kwargs: Any,
    ) -> None:
        """Update the metrics of a compiled model.

        Args:
            compiled_metrics: The metrics given to `model.compile`.
            labels: The labels of the batch.
            model_outputs: The outputs of the model.
            **kwargs: `sample_weight`, if the batch has weights.
        """
        compiled_metrics.update_state(labels, model_outputs, **kwargs)
        parts = compiled_metrics.metrics
        step_checks.check_class_labels(parts, labels, model_outputs, type(self).__name__)

    @user_code.not_converted
    def update_metrics(
        self,
        model: keras.Model,
        metrics: Sequence[keras.metrics.Metric] | None,
        labels: nests.Nest,
        outputs: nests.Nest,
        *,
        features: nests.Nest = None,
        sample_weight: nests.Nest = None,
        **kwargs: Any,
    ) -> None:
        """Update the task's metrics and the metrics given to `model.compile`.

        If the class of a compiled model overrides `compute_metrics`, that method updates the
        metrics of the model, as in `fit`.

        Args:
            model: The model.
            metrics: The task's metrics.
            labels: The labels of the batch.
            outputs: The outputs of the model.
            features: The inputs on which the model was called, for `compute_metrics`.
            sample_weight: The weights of the examples, for a compiled model.
            **kwargs: Arguments passed to `process_metrics`.
        """
        if metrics:
            user_code.converted(self.process_metrics)(metrics, labels, outputs, **kwargs)
        if _overrides_keras(model, "compute_metrics") and model.compiled:
            compute = user_code.converted(model.compute_metrics)
            _warn_of_unreported(
                model, compute(features, labels, outputs, sample_weight=sample_weight)
            )
        elif compiled_metrics := step_metrics.compiled_metrics(model):
            weights = {} if sample_weight is None else {"sample_weight": sample_weight}
            process = user_code.converted(self.process_compiled_metrics)
            process(compiled_metrics, labels, outputs, **weights)

    @user_code.not_converted
    def step_loss(
        self,
        model: keras.Model,
        features: nests.Nest,
        labels: nests.Nest,
        outputs: nests.Nest,
        *,
        sample_weight: nests.Nest = None,
        training: bool = True,
        aux_losses: Sequence[tf.Tensor] | None = None,
    ) -> tf.Tensor:
        """Return the loss of a batch, for both training and validation.

        If the model was not compiled with a loss, return the result of `build_losses`. Otherwise
        return the compiled loss, computed as in `fit` and `evaluate`, plus the result of
        `build_losses` if the task overrides that method.

        Args:
            model: The model.
            features: The inputs on which the model was called.
            labels: The labels of the batch.
            outputs: The outputs of the model.
            sample_weight: The weights of the examples, for a compiled model.
            training: Whether this is a training step.
            aux_losses: Losses to use instead of `model.losses`.
        """
        if not self._is_loss_checked:
            self._is_loss_checked = True
            step_checks.warn_of_logits(self, model)
            step_checks.warn_of_pairing(self, Task, labels, outputs)
        if not _has_compiled_loss(model):
            if aux_losses is None:
                aux_losses = getattr(model, "losses", ())  # A `tf.Module` has no losses.
            return self._loss(labels, outputs, aux_losses)
        compute_loss = functools.partial(
            user_code.converted(model.compute_loss), features, labels, outputs, sample_weight
        )
        with distributed_gradients.undivided_losses():
            if "training" in inspect.signature(model.compute_loss).parameters:
                loss = compute_loss(training=training)
            else:
                # The model overrides `compute_loss` with the signature of an earlier Keras version.
                loss = compute_loss()
        loss = tf.cast(loss, tf.float32)
        if aux_losses is not None:
            loss += _total(aux_losses) - _total(model.losses)
        if type(self).build_losses is not Task.build_losses:
            loss += self._loss(labels, outputs, None)
        return loss

    @user_code.not_converted
    def train_step(
        self,
        inputs: nests.Nest,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        metrics: Sequence[keras.metrics.Metric] | None = None,
    ) -> dict[str, Any]:
        """Run the forward and backward passes on one replica's batch and update the weights.

        Gradients are summed over the replicas, so this method divides the loss by the number of
        replicas. An overridden `train_step` must do the same.

        Returns:
            The logs; `logs[self.loss]` is this replica's loss.
        """
        features, labels, weights = split_batch(inputs, model)
        with tf.GradientTape() as tape:
            outputs = model(features, training=True)
            loss = self.step_loss(
                model, features, labels, outputs, sample_weight=weights, training=True
            )
            _require_scalar(loss, self)
            _require_optimizer(optimizer, self)
            scaled_loss = optimizer.scale_loss(_share_of_replica(loss))
        gradients = tape.gradient(scaled_loss, model.trainable_variables)
        optimizer.apply_gradients(list(zip(gradients, model.trainable_variables, strict=True)))
        self.update_metrics(
            model, metrics, labels, outputs, features=features, sample_weight=weights
        )
        return {self.loss: loss}

    @user_code.not_converted
    def validation_step(
        self,
        inputs: nests.Nest,
        model: keras.Model,
        metrics: Sequence[keras.metrics.Metric] | None = None,
    ) -> dict[str, Any]:
        """Compute the loss of one replica's batch and update the metrics, without training."""
        features, labels, weights = split_batch(inputs, model)
        outputs = user_code.converted(self.inference_step)(features, model)
        loss = self.step_loss(
            model, features, labels, outputs, sample_weight=weights, training=False
        )
        self.update_metrics(
            model, metrics, labels, outputs, features=features, sample_weight=weights
        )
        return {self.loss: loss}

    @user_code.not_converted
    def predict_step(self, inputs: nests.Nest, model: keras.Model) -> dict[str, tf.Tensor]:
        """Return the predictions for one replica's batch, for `--mode=predict`.

        Args:
            inputs: The batch, with or without labels.
            model: The model.

        Returns:
            Dense tensors by the name of their column, with one row per example; see
            `build_predictions`, which the default implementation calls.
        """
        features, labels, _ = split_batch(inputs, model)
        outputs = user_code.converted(self.inference_step)(features, model)
        has_labels = isinstance(inputs, tuple) and features is not inputs
        build = user_code.converted(self.build_predictions)
        return build(features, labels if has_labels else None, outputs)

    def build_predictions(
        self, features: nests.Nest, labels: nests.Nest, outputs: nests.Nest
    ) -> dict[str, tf.Tensor]:
        """Return what to write for a batch, as columns with one row per example.

        The default implementation returns the outputs of the model: under `output` for a single
        tensor, under its name for a tensor in a dictionary, and under `output_0`, `output_1`, …
        for tensors in a list. If the metrics, or the loss given to `compile`, say that the outputs
        are scores of classes, as `SparseCategoricalAccuracy` does, a column `class` has the index
        of the highest score. If the model ends with a softmax, a column `probability` has the
        highest score.

        Override this method to write other columns, such as an id in the features::

            def build_predictions(self, features, labels, outputs):
                return {"id": features["id"], "score": tf.sigmoid(outputs[:, 0])}

        Args:
            features: The features of the batch.
            labels: The labels of the batch; None if the data have none.
            outputs: The outputs of the model.
        """
        del features, labels
        return outputs_as_columns(outputs, scores_classes=self.scores_classes)

    def inference_step(self, inputs: nests.Nest, model: keras.Model) -> nests.Nest:
        """Return the model's outputs in inference mode."""
        return model(_by_name(inputs, model), training=False)

    def aggregate_logs(self, state: nests.Nest, step_logs: Mapping[str, Any]) -> nests.Nest:
        """Fold one batch's logs into the state of the evaluation, on the host.

        Override this method for metrics that need all predictions at once. Each value of
        `step_logs` is a tuple with one element per replica, of all workers if there are several. In
        the first call `state` is None.

        Returns:
            The new state. The default implementation aggregates nothing and returns None.
        """
        del state, step_logs

    def reduce_aggregated_logs(
        self, aggregated_logs: nests.Nest, global_step: tf.Variable | None = None
    ) -> Mapping[str, Any]:
        """Compute metrics from the state of `aggregate_logs`, at the end of the evaluation."""
        del aggregated_logs, global_step
        return {}

    def _loss(
        self, labels: nests.Nest, outputs: nests.Nest, aux_losses: Sequence[tf.Tensor] | None
    ) -> tf.Tensor:
        build_losses = user_code.converted(self.build_losses)
        with distributed_gradients.undivided_losses():
            loss = build_losses(labels=labels, model_outputs=outputs, aux_losses=aux_losses)
        return step_checks.returned(self.build_losses, loss, "the loss of the batch, a scalar")


def split_features_and_labels(inputs: nests.Nest) -> tuple[nests.Nest, nests.Nest]:
    """Return the two elements of a pair, or use any other input as both features and labels."""
    if isinstance(inputs, tuple) and len(inputs) == 2:
        return inputs
    return inputs, inputs


def split_batch(
    inputs: nests.Nest, model: keras.Model
) -> tuple[nests.Nest, nests.Nest, nests.Nest]:
    """Split a batch into features, labels and example weights, which may be None.

    As in `fit`, a triple is split into all three if the model was compiled with a loss. Otherwise
    nothing would apply the weights, and the triple is used as both features and labels.
    """
    if isinstance(inputs, tuple) and len(inputs) == 3 and _has_compiled_loss(model):
        features, labels, weights = inputs
        return _by_name(features, model), labels, weights
    if isinstance(inputs, tuple) and len(inputs) == 3:
        terminal.warn_once(
            "The batches are triples. Their third element is used as example weights only if the "
            "model is compiled with a loss. The model %r is not, so the whole triple is used as "
            "both features and labels. Return pairs from `build_inputs`, compile the model with a "
            "loss, or override `train_step` and `validation_step`.",
            getattr(model, "name", type(model).__name__),
        )
    features, labels = split_features_and_labels(inputs)
    return _by_name(features, model), labels, None


def _by_name(features: nests.Nest, model: keras.Model) -> nests.Nest:
    """Drop the features that a functional model with named inputs does not use.

    Keras would otherwise pair inputs with features in alphabetical order, so that an unused feature
    would shift all features after it.
    """
    # Only functional models have an `input` attribute.
    wanted = getattr(model, "input", None) if isinstance(features, Mapping) else None
    if isinstance(wanted, Mapping) and wanted.keys() < features.keys():
        return {name: features[name] for name in wanted}
    return features


def _share_of_replica(loss: tf.Tensor) -> tf.Tensor:
    num_replicas = _num_replicas()
    return loss / num_replicas if num_replicas > 1 else loss


def _num_replicas() -> int:
    return int(tf.distribute.get_strategy().num_replicas_in_sync)


def _total(losses: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.add_n([tf.cast(loss, tf.float32) for loss in losses or [tf.constant(0.0)]])


def _require_optimizer(optimizer: Any, task: Task) -> None:
    if not hasattr(optimizer, "scale_loss"):
        raise errors.ConfigTypeError(
            f"The optimizer is {optimizer!r}, but the default `train_step` expects one Keras "
            f"optimizer. Return one from {plugins.described(task.create_optimizer)}. To use "
            "several optimizers, override `train_step`; see docs/how_to/own_task.md."
        )


def _require_scalar(loss: Any, task: Task) -> None:
    if not tf.is_tensor(loss):
        raise errors.ConfigTypeError(
            f"{plugins.described(task.build_losses)} returned {loss!r}; expected the loss of the "
            "batch, a scalar tensor that is computed from the outputs of the model."
        )
    # The gradient of a vector loss is the gradient of its sum, which would silently grow with the
    # batch size.
    if loss.shape.rank and loss.shape.num_elements() != 1:
        raise errors.ConfigValueError(
            f"The loss of {plugins.described(task.build_losses)} has the shape {loss.shape}; "
            "expected a scalar. Apply `tf.reduce_mean` to it."
        )


def _has_compiled_loss(model: keras.Model) -> bool:
    """Return whether the model is compiled, and has a loss or overrides `compute_loss`."""
    # `bool(model.compiled_loss)` can't be used: in Keras 3 it is true even for a model that was
    # never compiled.
    if not getattr(model, "compiled", False):
        return False
    return model.loss is not None or type(model).compute_loss is not keras.Model.compute_loss


def find_init_checkpoint(task: Task, path: str) -> str | None:
    """Return the checkpoint that `init_checkpoint` names; None if there is none.

    For a directory, return the checkpoint that the trainer chose when it last initialized the
    model, or else the latest one. Looking up the latest checkpoint for each part would mix
    checkpoints if a running pretraining job saves a new one in between.

    Args:
        task: The task.
        path: The field `init_checkpoint` of the task config.
    """
    return _init_checkpoints.get(task, {}).get(path) or warm_start.find_checkpoint(path)


def choose_init_checkpoint(task: Task, path: str, found: str | None) -> None:
    """Make `find_init_checkpoint` return `found` for `path`; None removes the earlier choice."""
    _init_checkpoints[task] = {} if found is None else {path: found}


def load_optimizer(
    config: config_definitions.TaskConfig,
    optimizer: keras.optimizers.Optimizer,
    model: keras.Model,
    *,
    task: Task | None = None,
) -> None:
    """Load the optimizer state from `init_checkpoint`, if the task config requests it.

    Args:
        config: The task config.
        optimizer: The optimizer.
        model: The model.
        task: The task. If given, the optimizer is loaded from the checkpoint that was chosen for
            the weights of the task; see `find_init_checkpoint`.
    """
    part = hyperparams.get_by_path(config, "init_checkpoint_optimizer", "none")
    if part != "none" and config.init_checkpoint:
        path = config.init_checkpoint
        found = (
            warm_start.find_checkpoint(path) if task is None else find_init_checkpoint(task, path)
        )
        warm_start.load_optimizer(
            optimizer,
            model,
            found or path,
            modules=config.init_checkpoint_modules,
            strict=config.init_checkpoint_strict,
            with_counters=part == "all",
        )
        if part == "slots":
            # At step 0, a schedule-free optimizer would overwrite the loaded weights with its
            # momentum slots, which hold the saved weights before averaging.
            adamw.restart_averaging(optimizer)


def load_averages(
    task: Task,
    config: config_definitions.TaskConfig,
    optimizer: keras.optimizers.Optimizer,
    model: keras.Model,
) -> None:
    """Load the averaged weights of `init_checkpoint`, which evaluations and predictions use.

    If the task overrides `initialize`, nothing is loaded, because its weights may not come from
    this checkpoint.
    """
    path = hyperparams.get_by_path(config, "init_checkpoint", "")
    if path and type(task).initialize is Task.initialize:
        warm_start.load_averages(
            optimizer,
            model,
            find_init_checkpoint(task, path) or path,
            modules=hyperparams.get_by_path(config, "init_checkpoint_modules", warm_start.ALL),
        )


def outputs_as_columns(outputs: nests.Nest, *, scores_classes: bool) -> dict[str, tf.Tensor]:
    """Return the columns for the outputs of a model; see `Task.build_predictions`.

    Args:
        outputs: The outputs of the model.
        scores_classes: Whether a single output has one score per class.
    """
    named = _named(outputs, "")
    names = nested_dict.unique_keys([name for name, _ in named])
    columns = {name: tensor for name, (_, tensor) in zip(names, named, strict=True)}
    is_table = isinstance(outputs, tf.Tensor) and outputs.shape.rank == 2
    if scores_classes and is_table and outputs.dtype.is_floating and outputs.shape[-1] != 1:
        columns["class"] = tf.argmax(outputs, axis=-1)
        if _is_softmax(outputs):
            columns["probability"] = tf.reduce_max(outputs, axis=-1)
    return columns


def _named(outputs: nests.Nest, name: str) -> list[tuple[str, tf.Tensor]]:
    """Return a column name and the tensor for each leaf of a nest."""
    if isinstance(outputs, Mapping):
        parts = [(f"{name}{'.' if name else ''}{key}", part) for key, part in outputs.items()]
    elif isinstance(outputs, list | tuple):
        parts = [(f"{name or 'output'}_{index}", part) for index, part in enumerate(outputs)]
    else:
        return [] if outputs is None else [(name or "output", outputs)]
    return [column for key, part in parts for column in _named(part, key)]


def _is_softmax(tensor: tf.Tensor) -> bool:
    """Return whether a graph tensor is the result of a softmax; False in eager mode."""
    while isinstance(tensor, tf.Tensor) and not tf.executing_eagerly():
        if tensor.op.type not in _KEEP_VALUES:
            return bool(tensor.op.type == "Softmax")
        tensor = tensor.op.inputs[0]
    return False


def _overrides_keras(model: Any, name: str) -> bool:
    """Return whether the class of a Keras model overrides a method of `keras.Model`."""
    is_of_keras = getattr(type(model), name, None) is getattr(keras.Model, name)
    return isinstance(model, keras.Model) and not is_of_keras


def warn_of_overridden_step(model: keras.Model | tf.Module, task: Task, name: str) -> None:
    """Warn if the model overrides a Keras step that `fit` would call but the trainer does not.

    Args:
        model: The model.
        task: The task. If it overrides the step, there is no warning, because its step may call the
            step of the model.
        name: The name of the step of the task.
    """
    in_keras = "test_step" if name == "validation_step" else name
    if _overrides_keras(model, in_keras) and getattr(type(task), name) is getattr(Task, name):
        terminal.warn_once(
            "`%s.%s` is never called, because the step of the task is used instead. Move the code "
            "to `%s.%s`; see docs/coming_from_keras.md.",
            type(model).__name__,
            in_keras,
            type(task).__name__,
            name,
        )


def _warn_of_lookalikes(task_cls: type[Task]) -> None:
    """Warn about methods with misspelled or Lightning names, which the trainer never calls."""
    methods = [name for name, value in vars(Task).items() if callable(value) and name[0] != "_"]
    for name, value in vars(task_cls).items():
        if name.startswith("_") or not callable(value) or hasattr(Task, name):
            continue
        meant = _LIGHTNING.get(name) or next(
            iter(difflib.get_close_matches(name, methods, n=1, cutoff=0.9)), None
        )
        # If the task also overrides `meant`, the method with the similar name may be a helper.
        if meant and getattr(task_cls, meant, None) is getattr(Task, meant, None):
            terminal.warn_once(
                "`%s.%s` is never called by the trainer. Did you mean `%s`?",
                task_cls.__name__,
                name,
                meant,
            )


def _warn_of_unreported(model: keras.Model, results: Any) -> None:
    """Warn once per model about `compute_metrics` results that no metric of the model reports."""
    if model in _unreported:
        return
    _unreported.add(model)
    unknown = sorted(set(results or ()) - {"loss"} - step_checks.reported_names(model.metrics))
    if unknown:
        logging.warning(
            "`%s.compute_metrics` returns %s, but a run reports only the values of metrics. Track "
            "the value in a `keras.metrics.Mean` that is an attribute of the model.",
            type(model).__name__,
            ", ".join(unknown),
        )
