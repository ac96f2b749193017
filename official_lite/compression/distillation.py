"""Distillation: a model learns from the outputs, and the features, of a trained one."""

import functools
import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_lite import telemetry
from official_lite.common import errors, suggestions, types
from official_lite.compression import configs

__all__ = ["Distillation"]

# The smallest probability whose logarithm is taken.
_EPSILON = 1e-7


class Distillation:
    """Adds the loss between a student and its teacher to the loss of a task.

    `Task.step_loss` calls the object in training. A `train_step` that does not call `step_loss`
    can call it itself::

        loss = self.distillation(loss, features, outputs)

    The weights of the teacher are not part of the checkpoints of the student. A checkpoint records
    which checkpoint of the teacher was used and a hash of its weights, and a resumed run loads the
    same weights or fails.

    Args:
        config: The config.
        teacher: The model of the teacher, which may still be unbuilt.
        checkpoint: The checkpoint with its weights.
        load_weights: Loads the weights of a checkpoint into the teacher.
    """

    def __init__(
        self,
        config: configs.DistillationConfig,
        teacher: keras.Model,
        checkpoint: str,
        load_weights: Callable[[str], None],
    ) -> None:
        self._config = config
        self._checkpoint = checkpoint
        self._load_weights = load_weights
        self._recorders: tuple[_Recorder, _Recorder] | None = None
        self.teacher = teacher
        self.num_calls = 0
        self.record = _Record(self)

    def bind(self, student: keras.Model) -> None:
        """Load the weights of the teacher, and watch the layers of the config.

        Call it once, in the strategy's scope, when both models have their variables.

        Raises:
            errors.UnknownNameError: A model has no layer of a name in the config.
            errors.CheckpointError: The weights can't be loaded.
        """
        self.load(self._checkpoint)
        features = self._config.features
        self._recorders = (
            _Recorder(student, [each.student_layer for each in features], "student"),
            _Recorder(
                self.teacher, [each.teacher_layer or each.student_layer for each in features]
            ),
        )
        logging.info("The teacher is %s.", self._checkpoint)

    @property
    def checkpoint(self) -> str:
        """The checkpoint with the weights of the teacher."""
        return self._checkpoint

    def load(self, checkpoint: str) -> None:
        """Load the weights of a checkpoint into the teacher."""
        self._load_weights(checkpoint)
        self._checkpoint = checkpoint

    def hash_of_weights(self) -> str:
        """Return the SHA-256 hash of the weights of the teacher."""
        digest = hashlib.sha256()
        for weight in self.teacher.weights:
            digest.update(weight.numpy().tobytes())
        return digest.hexdigest()

    def __call__(self, loss: tf.Tensor, features: types.Nest, outputs: types.Nest) -> tf.Tensor:
        """Return the loss of a training step; call this in a replica, under the gradient tape.

        Args:
            loss: The loss of the task.
            features: The inputs of the student.
            outputs: The outputs of the student, from a call on `features`.

        Raises:
            errors.ConfigValueError: The outputs or features of the two models can't be compared.
        """
        self.num_calls += 1
        if self._recorders is None:
            # The step is traced to create the variables of the student.
            return loss
        of_student, of_teacher = self._recorders
        expected = self.teacher(features, training=False)
        alpha = self._config.alpha
        total = (1.0 - alpha) * tf.cast(loss, tf.float32)
        if alpha:
            own = self._output_loss(self._output(outputs), self._output(expected))
            telemetry.put_scalar("distillation/output_loss", own)
            total += alpha * own
        for config, mine, theirs in zip(
            self._config.features, of_student.take(), of_teacher.take(), strict=True
        ):
            own = _feature_loss(config, mine, tf.stop_gradient(theirs))
            telemetry.put_scalar(f"distillation/{config.student_layer}", own)
            total += config.weight * own
        return total

    def _output(self, outputs: types.Nest) -> tf.Tensor:
        name = self._config.output
        if isinstance(outputs, Mapping) and name in outputs:
            outputs = outputs[name]
        elif name or not tf.is_tensor(outputs):
            names = list(outputs) if isinstance(outputs, Mapping) else []
            raise errors.ConfigValueError(
                f"`distillation.output` is {name!r}, but the outputs of a model are "
                f"{', '.join(map(repr, names)) or type(outputs).__name__}. Set it to the name of "
                "an output of both models, or leave it empty if each has only one."
            )
        return tf.cast(outputs, tf.float32)

    def _output_loss(self, mine: tf.Tensor, theirs: tf.Tensor) -> tf.Tensor:
        _require_same_shape("the outputs", mine, theirs)
        theirs = tf.stop_gradient(theirs)
        if self._config.loss == "mse":
            return tf.reduce_mean(tf.square(mine - theirs))
        if mine.shape[-1] == 1:
            raise errors.ConfigValueError(
                "`distillation.loss` is `kl`, but the models have a single output, which has no "
                "distribution over classes. Use `mse`."
            )
        temperature = self._config.temperature
        mine, theirs = (
            tf.nn.log_softmax(self._logits(each) / temperature) for each in (mine, theirs)
        )
        divergence = tf.reduce_sum(tf.exp(theirs) * (theirs - mine), axis=-1)
        # Softer probabilities have smaller gradients, by this factor.
        return temperature**2 * tf.reduce_mean(divergence)

    def _logits(self, outputs: tf.Tensor) -> tf.Tensor:
        if self._config.from_logits:
            return outputs
        return tf.math.log(tf.maximum(outputs, _EPSILON))


class _Record(tf.train.experimental.PythonState):
    """The teacher of a run, in its checkpoints."""

    def __init__(self, distillation: Distillation) -> None:
        self._distillation = distillation

    def serialize(self) -> str:
        distillation = self._distillation
        return json.dumps(
            {"checkpoint": distillation.checkpoint, "sha256": distillation.hash_of_weights()}
        )

    def deserialize(self, string_value: str) -> None:
        """Load the weights that were used before, if the teacher has others.

        Raises:
            errors.CheckpointError: They can't be loaded.
        """
        saved, distillation = json.loads(string_value), self._distillation
        if distillation.hash_of_weights() == saved["sha256"]:
            return
        path = saved["checkpoint"]
        remedy = "Restore that checkpoint, or start a new run in another `model_dir`."
        try:
            distillation.load(path)
        except errors.CheckpointError as error:
            raise errors.CheckpointError(
                f"This run learned from the teacher {path}, which can't be loaded. {remedy} {error}"
            ) from error
        if distillation.hash_of_weights() != saved["sha256"]:
            raise errors.CheckpointError(
                f"This run learned from the teacher {path}, which has changed. {remedy}"
            )


class _Recorder:
    """Records the outputs of layers while a step is traced, on each thread by itself.

    Args:
        model: The model.
        names: The names or paths of layers, which may occur repeatedly.
        role: What the model is, for error messages.
    """

    def __init__(self, model: keras.Model, names: Sequence[str], role: str = "teacher") -> None:
        self._names = list(names)
        # Replicas are traced on threads of their own, which may take turns.
        self._outputs = threading.local()
        for name in dict.fromkeys(names):
            self._watch(_find_layer(model, name, role), name)

    def take(self) -> list[Any]:
        """Return the latest output of each layer, and forget it."""
        outputs, vars(self._outputs)["latest"] = self._latest(), {}
        for name in self._names:
            if name not in outputs:
                raise errors.ConfigValueError(
                    f"`distillation.features` names the layer {name!r}, which the model does not "
                    "call."
                )
        return [outputs[name] for name in self._names]

    def _latest(self) -> dict[str, Any]:
        latest: dict[str, Any] = vars(self._outputs).setdefault("latest", {})
        return latest

    def _watch(self, layer: keras.Layer, name: str) -> None:
        call = layer.call

        @functools.wraps(call)
        def noting_call(*args: Any, **kwargs: Any) -> Any:
            outputs = call(*args, **kwargs)
            self._latest()[name] = outputs
            return outputs

        # Bypass Keras' `__setattr__`, which would track the function.
        layer.__dict__["call"] = noting_call


def _find_layer(model: keras.Model, name: str, role: str) -> keras.Layer:
    layers = model._flatten_layers(include_self=False)
    by_name = {key: layer for layer in layers for key in (layer.path, layer.name)}
    if name not in by_name:
        raise errors.UnknownNameError(
            f"`distillation.features` names the layer {name!r}, which the {role} {model.name!r} "
            f"does not have. {suggestions.did_you_mean(name, list(by_name))}"
        )
    return by_name[name]


def _feature_loss(
    config: configs.FeatureLossConfig, mine: tf.Tensor, theirs: tf.Tensor
) -> tf.Tensor:
    what = f"the outputs of the layers {config.student_layer!r}"
    mine, theirs = tf.cast(mine, tf.float32), tf.cast(theirs, tf.float32)
    if config.loss == "attention":
        if mine.shape.rank is None or mine.shape.rank < 3:
            raise errors.ConfigValueError(
                f"`distillation.features`: {what} have the shape {mine.shape}, but `loss: "
                "attention` compares maps of the shape (batch, …, channels). Use `mse`."
            )
        mine, theirs = _attention(mine), _attention(theirs)
    _require_same_shape(what, mine, theirs)
    return tf.reduce_mean(tf.square(mine - theirs))


def _attention(features: tf.Tensor) -> tf.Tensor:
    """Return the normalized mean square over the channels, of shape (batch, positions)."""
    size = tf.reduce_mean(tf.square(features), axis=-1)
    positions = size.shape[1:].num_elements()
    return tf.math.l2_normalize(tf.reshape(size, [-1, positions or -1]), axis=-1)


def _require_same_shape(what: str, mine: tf.Tensor, theirs: tf.Tensor) -> None:
    if mine.shape.is_compatible_with(theirs.shape):
        return
    raise errors.ConfigValueError(
        f"Distillation compares {what}, but they have the shape {mine.shape} in the student and "
        f"{theirs.shape} in the teacher."
    )
