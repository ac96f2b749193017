from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors, keras_variables
from official_lite.core import base_task, train_lib
from official_lite.modeling import remat


class Block(keras.layers.Layer):
    """A block with random numbers and moving statistics."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(4, activation="tanh")
        self.norm = keras.layers.BatchNormalization(momentum=0.5)
        self.dropout = keras.layers.Dropout(0.3, seed=1)

    def build(self, shape: Any) -> None:
        self.dense.build(shape)
        self.norm.build((None, 4))

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x + self.dropout(self.norm(self.dense(x)))


class BlocksTask(base_task.Task):
    def build_model(self) -> keras.Model:
        layers = [Block(name="block_1"), Block(name="block_2"), keras.layers.Dense(1, name="head")]
        return keras.Sequential([keras.Input((4,)), *layers])

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        x = tf.random.stateless_normal((16, 4), (1, 2))
        batch_size = params.global_batch_size
        if input_context:
            batch_size = input_context.get_per_replica_batch_size(batch_size)
        return (
            tf.data.Dataset.from_tensor_slices((x, x[:, :1]))
            .repeat()
            .batch(batch_size, drop_remainder=True)
        )

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        return tf.reduce_mean(tf.square(model_outputs - labels))


def _weights(experiment, model_dir, steps: int, patterns: list[str], **kwargs: Any) -> Any:
    execution, strategy = kwargs.get("execution", "graph"), kwargs.get("strategy")
    trainer = {"train_steps": steps, "remat": patterns}
    if "optimizer_config" in kwargs:
        trainer["optimizer_config"] = kwargs["optimizer_config"]
    params = experiment(trainer=trainer, runtime={"execution": execution})
    task = kwargs.get("task_cls", BlocksTask)(params.task)
    keras.utils.set_random_seed(0)
    model, _ = train_lib.run_experiment(strategy, task, "train", params, str(model_dir))
    layer = model.get_layer("block_1")
    assert bool(patterns) == (keras_variables.name_of_call(layer) in layer.__dict__)
    return [weight.numpy() for weight in model.variables]


def _assert_close(got: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def _train_both_ways(experiment, tmp_path, steps: int = 4, **kwargs: Any) -> list[np.ndarray]:
    """Require that training with rematerialization gives the same weights, and return them."""
    plain = _weights(experiment, tmp_path / "plain", steps, [], **kwargs)
    recomputed = _weights(experiment, tmp_path / "remat", steps, ["block"], **kwargs)
    _assert_close(recomputed, plain)
    return recomputed


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("execution", "num_replicas"),
    [("eager", 1), ("graph", 1), ("xla", 1), ("xla_loop", 1), ("graph", 2), ("xla", 2)],
)
def test_rematerialization_does_not_change_the_trained_weights(
    experiment, tmp_path, two_replicas, execution, num_replicas
) -> None:
    strategy = two_replicas if num_replicas == 2 else None
    _train_both_ways(experiment, tmp_path, execution=execution, strategy=strategy)


@pytest.mark.sample(1)
@pytest.mark.parametrize("execution", ["graph", "xla"])
def test_resumed_run_with_rematerialization_equals_an_uninterrupted_run_bit_for_bit(
    experiment, tmp_path, execution
) -> None:
    _weights(experiment, tmp_path / "resumed", 2, ["block"], execution=execution)
    resumed = _weights(experiment, tmp_path / "resumed", 4, ["block"], execution=execution)
    whole = _weights(experiment, tmp_path / "whole", 4, ["block"], execution=execution)
    for one, other in zip(resumed, whole, strict=True):
        np.testing.assert_array_equal(one, other)


def test_rematerialized_recurrent_layer_may_carry_states_from_batch_to_batch(
    experiment, tmp_path
) -> None:
    class RecurrentTask(BlocksTask):
        def build_model(self) -> keras.Model:
            inputs = keras.Input((4,), batch_size=8)
            steps = keras.layers.Reshape((4, 1))(inputs)
            states = keras.layers.SimpleRNN(3, stateful=True, name="block_1")(steps)
            return keras.Model(inputs, keras.layers.Dense(1)(states))

    _train_both_ways(experiment, tmp_path, task_cls=RecurrentTask)


class Inner(keras.layers.Layer):
    """A layer with a ragged argument and an output that may be None."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.dense = keras.layers.Dense(4)

    def call(self, x: tf.RaggedTensor, training: bool = False) -> tuple[tf.Tensor, None]:
        return self.dense(x.to_tensor(shape=[None, 4])) * (2.0 if training else 1.0), None


class Outer(keras.Model):
    def __init__(self, is_direct: bool) -> None:
        super().__init__()
        self.inner = Inner(name="block_1")
        self.head = keras.layers.Dense(1)
        self.is_direct = is_direct

    def build(self, shape: Any) -> None:
        self.inner.dense.build((None, 4))
        self.head.build((None, 4))

    def call(self, x: tf.Tensor) -> tf.Tensor:
        outputs, _ = (self.inner.call if self.is_direct else self.inner)(_as_ragged(x))
        return self.head(outputs)


def _as_ragged(x: tf.Tensor) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_tensor(x, lengths=tf.fill([tf.shape(x)[0]], 3))


@pytest.mark.parametrize("is_direct", [False, True])
def test_rematerialized_layer_may_receive_ragged_tensors_and_return_none(
    experiment, tmp_path, is_direct
) -> None:
    class InnerTask(BlocksTask):
        def build_model(self) -> keras.Model:
            return Outer(is_direct)

    _train_both_ways(experiment, tmp_path, task_cls=InnerTask)


class WithSpareWeight(keras.layers.Dense):
    """A dense layer with a weight that no output depends on."""

    def build(self, shape: Any) -> None:
        super().build(shape)
        self.spare = self.add_weight(shape=(3,), initializer="ones", name="spare")


@pytest.mark.sample(1)
@pytest.mark.parametrize("execution", ["graph", "xla", "xla_loop"])
def test_unused_weights_do_not_decay_with_rematerialization(
    experiment, tmp_path, execution
) -> None:
    class SpareTask(BlocksTask):
        def build_model(self) -> keras.Model:
            layers = [WithSpareWeight(4, name="block_1"), keras.layers.Dense(1)]
            return keras.Sequential([keras.Input((4,)), *layers])

    adamw = {"optimizer": {"type": "adamw", "adamw": {"weight_decay_rate": 0.1}}}
    options = {"execution": execution, "task_cls": SpareTask, "optimizer_config": adamw}
    recomputed = _train_both_ways(experiment, tmp_path, **options)
    assert [weight.tolist() for weight in recomputed].count([1.0, 1.0, 1.0]) == 1


class MaskedMean(keras.layers.Layer):
    """A layer that uses the mask of its input and passes it on."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, x: tf.Tensor, mask: tf.Tensor | None = None) -> tf.Tensor:
        weights = tf.cast(mask, x.dtype)[..., tf.newaxis]
        return x - tf.reduce_sum(x * weights, 1, keepdims=True) / tf.reduce_sum(weights)


def test_masks_pass_through_rematerialized_layers() -> None:
    layers = [keras.layers.Masking(), MaskedMean(name="mean_1"), MaskedMean(name="mean_2")]
    model = keras.Sequential([keras.Input((3, 2)), *layers])
    x = tf.constant([[[1.0, 2.0], [3.0, 5.0], [0.0, 0.0]]])

    @tf.function
    def gradient(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(model(x, training=True) ** 3)
        return tape.gradient(loss, x)

    plain = gradient(x)
    remat.rematerialize(model, ["mean"])
    fresh = tf.function(gradient.python_function)
    _assert_close([fresh(x).numpy()], [plain.numpy()])


def test_remat_pattern_that_matches_no_layer_is_refused(experiment, tmp_path) -> None:
    with pytest.raises(errors.ConfigValueError, match=r"'blok', which matches no layer.*/block_1`"):
        _weights(experiment, tmp_path, 1, ["blok"])


def test_rematerializing_a_layer_that_adds_a_loss_is_refused() -> None:
    regularized = keras.layers.Dense(2, activity_regularizer="l2")
    inner = keras.Sequential([keras.layers.Dense(2), regularized], name="inner")
    model = keras.Sequential([keras.Input((2,)), inner])
    remat.rematerialize(model, ["inner"])
    with tf.GradientTape(), pytest.raises(errors.ConfigValueError, match="add_loss"):
        model(tf.ones([1, 2]), training=True)


class TableTask(BlocksTask):
    """A task that looks up rows of a table."""

    def build_model(self) -> keras.Model:
        inputs = keras.Input((4,))
        rows = keras.layers.Embedding(8, 3, name="block_1")(inputs)
        return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))


@pytest.mark.parametrize("execution", ["graph", "xla"])
def test_rematerializing_a_table_whose_rows_are_updated_lazily_is_refused(
    experiment, tmp_path, execution
) -> None:
    lazy = {"type": "adamw", "adamw": {"lazy_rows": True, "weight_decay_rate": 0.1}}
    options = {"optimizer_config": {"optimizer": lazy}, "execution": execution}
    message = r"`trainer\.remat` matches 'block_1', which looks up rows of block_1/embeddings"
    with pytest.raises(errors.ConfigValueError, match=message):
        _weights(experiment, tmp_path, 1, ["block"], task_cls=TableTask, **options)


class QuantizedTask(BlocksTask):
    """A task whose model has a quantized layer with LoRA weights."""

    calls = 0

    def build_model(self) -> keras.Model:
        dense = keras.layers.Dense(4, activation=self.activation, name="block_1")
        model = keras.Sequential([keras.Input((4,)), dense, keras.layers.Dense(1)])
        dense.quantize("int8")
        dense.enable_lora(2)
        return model

    def activation(self, x: tf.Tensor) -> tf.Tensor:
        type(self).calls += 1
        return tf.tanh(x)


# Keras triggers this warning when it quantizes.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_rematerializing_a_quantized_layer_with_lora_does_not_change_its_training(
    experiment, tmp_path
) -> None:
    params = experiment(trainer={"train_steps": 1})
    model = QuantizedTask(params.task).build_model()
    remat.rematerialize(model, ["block"])
    QuantizedTask.calls = 0
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tf.ones([1, 4]), training=True))
    tape.gradient(loss, model.trainable_variables)
    assert QuantizedTask.calls == 2
    _train_both_ways(experiment, tmp_path, 3, task_cls=QuantizedTask)
