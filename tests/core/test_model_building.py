import dataclasses
import functools
import os
import subprocess
import sys

import keras
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import model_building, task_factory, train_lib
from official_lite.tools import loaded_run
from tests import commands, line_experiment
from tests.line_experiment import LineTask


class Picky(keras.Model):
    """A model that is built on its first call and takes only one entry of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(3)
        self.norm = keras.layers.BatchNormalization()

    def call(self, tokens, training=False):
        return self.norm(self.dense(tokens), training=training)


SPEC = {"tokens": tf.TensorSpec((None, 4)), "label": tf.TensorSpec((None,), tf.string)}


def test_model_is_built_on_the_inputs_that_the_training_step_passes_to_it() -> None:
    model = Picky()
    model_building.build_variables(model, lambda batch: model(batch["tokens"]), SPEC)
    assert model.dense.kernel.shape == (4, 3)
    assert model_building.has_variables(model)


def test_training_step_is_not_traced_if_the_model_is_already_built() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model_building.build_variables(model, lambda batch: pytest.fail("was traced"), SPEC)


def test_error_for_a_model_that_cannot_be_built_contains_the_error_of_the_training_step() -> None:
    model = Picky()
    with pytest.raises(errors.ConfigError, match=r"(?s)could not be built.*KeyError: 'words'"):
        model_building.build_variables(model, lambda batch: model(batch["words"]), SPEC)


def test_building_a_model_raises_if_the_training_step_never_calls_it() -> None:
    with pytest.raises(errors.ConfigError, match="does not call"):
        model_building.build_variables(Picky(), lambda batch: batch["tokens"], SPEC)


def test_model_is_built_even_if_the_training_step_fails_after_calling_it() -> None:
    model = Picky()

    def step(batch):
        weights = model.trainable_variables
        model(batch["tokens"])
        if not weights:
            raise ValueError("The model was not built.")

    model_building.build_variables(model, step, SPEC)
    assert model.dense.kernel.numpy().std() > 0


class WithSequential(keras.Model):
    """A model with two `Sequential` layers, one of them in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.body = keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(4)])
        self.heads = [keras.Sequential([keras.layers.Dense(1)])]

    def call(self, tokens, training=False):
        return self.heads[0](self.body(tokens))


@pytest.mark.parametrize(
    "make",
    [
        Picky,
        WithSequential,
        lambda: keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(1)]),
    ],
)
def test_variables_of_a_model_built_on_two_replicas_are_mirrored(two_replicas, make) -> None:
    with two_replicas.scope():
        model = make()
        model_building.build_variables(model, lambda batch: model(batch["tokens"]), SPEC)
    assert all(len(v.value.values) == 2 for v in model.variables)
    assert model.count_params() > 0


class WithLateLayer(keras.Model):
    """A model with a layer that creates another layer while it is built."""

    class Block(keras.layers.Layer):
        def build(self, shape):
            self.dense = keras.layers.Dense(3)
            self.dense.build(shape)

        def call(self, tokens):
            return self.dense(tokens)

    def __init__(self) -> None:
        super().__init__()
        self.block = self.Block()

    def call(self, tokens, training=False):
        return self.block(tokens)


def test_layers_that_a_layer_creates_on_two_replicas_compute_in_the_precision_of_the_run(
    two_replicas,
) -> None:
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    with two_replicas.scope():
        model = WithLateLayer()
        model_building.build_variables(model, lambda batch: model(batch["tokens"]), SPEC)
    assert model.block.dense.compute_dtype == "bfloat16"


class Compiled(LineTask):
    """A task that compiles its model with a metric name; Keras builds the metric when needed."""

    def build_model(self):
        model = super().build_model()
        model.compile(loss="mse", metrics=["mae"])
        return model

    def build_metrics(self, training=True):
        return []


def test_metrics_of_a_compiled_model_are_built_before_the_training_loop(
    experiment, make_trainer, two_replicas
) -> None:
    with two_replicas.scope():
        trainer = make_trainer(experiment(), task_cls=Compiled)
        trainer.train(tf.constant(2))
        logs = trainer.evaluate(tf.constant(-1))
    assert logs["mae"] > 0


class ByName(LineTask):
    """A task that updates its metrics by name, as Model Garden tasks do."""

    def train_step(self, inputs, model, optimizer, metrics=None):
        logs = super().train_step(inputs, model, optimizer, metrics)
        {metric.name: metric for metric in metrics}["mae"].update_state([0.0], [1.0])
        return logs


def test_training_step_traced_to_build_a_model_receives_the_metrics_of_the_task(
    experiment, make_trainer
) -> None:
    params = experiment()
    params.task.is_built = False
    trainer = make_trainer(params, task_cls=ByName)
    assert trainer.train(tf.constant(1))["mae"] > 0


class KeepsItsMetric(LineTask):
    """A task that keeps its evaluation metric in an attribute, as Model Garden tasks do."""

    def build_metrics(self, training=True):
        metrics = super().build_metrics(training)
        (self.own,) = metrics
        return metrics


def test_trainer_of_an_unbuilt_model_leaves_the_task_with_its_evaluation_metrics(
    experiment, make_trainer
) -> None:
    params = experiment()
    params.task.is_built = False
    trainer = make_trainer(params, task_cls=KeepsItsMetric)
    logs = trainer.evaluate(tf.constant(-1))
    assert float(logs["mae"]) == float(trainer.task.own.result()) > 0


def test_training_step_traced_to_build_a_model_may_use_the_optimizer_of_the_run(
    experiment, make_trainer
) -> None:
    class Decaying(LineTask):
        def build_model(self) -> keras.Model:
            model = super().build_model()
            model.compile(metrics=["mse"])
            return model

        def train_step(self, inputs, model, optimizer, metrics=None):
            features, labels = inputs
            with tf.GradientTape() as tape:
                outputs = model(features, training=True)
                loss = self.build_losses(labels, outputs) * optimizer.beta_1
            variables = model.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
            self.update_metrics(model, metrics, labels, outputs)
            return {self.loss: loss}

    adam = {"optimizer_config": {"optimizer": {"type": "adam"}}}
    trainer = make_trainer(experiment(task={"is_built": False}, trainer=adam), task_cls=Decaying)
    assert "mse" in trainer.train(tf.constant(2))


# Prints whether the gradients of TensorFlow differ from those of NumPy.
STRIDED_KERNEL = """
import numpy as np, tensorflow as tf

@tf.function
def gradient_of(images, errors):
    with tf.GradientTape() as tape:
        kernel = tf.zeros([1, 1, 6, 8])
        tape.watch(kernel)
        loss = tf.reduce_sum(tf.nn.conv2d(images, kernel, 2, "SAME") * errors)
    return tape.gradient(loss, kernel)

is_wrong = False
for seed in range(30):
    numbers = np.random.default_rng(seed)
    images = numbers.uniform(size=(10, 14, 14, 6)).astype(np.float32)
    errors = numbers.uniform(size=(10, 7, 7, 8)).astype(np.float32)
    found = gradient_of(tf.constant(images), tf.constant(errors)).numpy()[0, 0]
    expected = np.einsum("nhwi,nhwo->io", images[:, ::2, ::2], errors)
    is_wrong |= bool(np.max(np.abs(found - expected)) > 1e-3 * np.max(expected))
print(is_wrong)
"""
# Prints the warning about a model, or nothing.
WARNING = """
import logging, keras
from official_lite.core import model_building, train_lib

class Printer(logging.Handler):
    def emit(self, record):
        print(record.getMessage())

logging.getLogger("absl").addHandler(Printer())
layers = [keras.Input((14, 14, CHANNELS)), keras.layers.Conv2D(8, 1, 2)]
model_building.warn_of_wrong_gradients(keras.Sequential(layers))
"""


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["AVX2", "ALL"])
def test_strided_convolution_logs_a_warning_only_if_its_gradients_are_wrong(isa) -> None:
    def run(code: str) -> subprocess.CompletedProcess[str]:
        # oneDNN reads the variable once, when TensorFlow is loaded.
        env = {**os.environ, "ONEDNN_MAX_CPU_ISA": isa}
        command = [sys.executable, "-c", code]
        return subprocess.run(command, cwd=commands.ROOT, env=env, capture_output=True, text=True)

    compared = run(STRIDED_KERNEL)
    # On some processors, the computation also damages the memory of its process.
    is_wrong = compared.returncode < 0 or compared.stdout.split()[-1] == "True"
    warnings = {channels: run(WARNING.replace("CHANNELS", channels)) for channels in ("6", "8")}
    assert [each.returncode for each in warnings.values()] == [0, 0]
    assert ("wrong gradients" in warnings["6"].stdout) == is_wrong
    assert warnings["8"].stdout == ""


class StridedTask(LineTask):
    """A task whose model has a strided convolution of a few channels."""

    def build_model(self) -> keras.Model:
        inputs = keras.Input((2,))
        images = keras.layers.Reshape((1, 1, 2))(inputs)
        pixels = keras.layers.Conv2D(4, 1, 2, name="shortcut")(images)
        return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(pixels)))


def test_training_warns_about_a_layer_whose_gradients_are_wrong_on_this_processor(
    experiment, make_trainer, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(model_building, "_computes_gradients_of_strided_kernels", lambda: False)
    make_trainer(experiment(), task_cls=StridedTask)
    [warning] = [r.message for r in caplog.records if "wrong gradients" in r.message]
    assert "shortcut" in warning
    assert "TF_ENABLE_ONEDNN_OPTS=0" in warning


def test_layer_that_the_model_never_calls_is_not_checked_for_wrong_gradients(
    monkeypatch, caplog
) -> None:
    monkeypatch.setattr(model_building, "_computes_gradients_of_strided_kernels", lambda: False)
    model_building.warn_of_wrong_gradients(keras.Sequential([keras.layers.Conv2D(8, 1, 2)]))
    assert not caplog.records


# Keras warns of a model whose first call does not build all of its layers.
_partly_built = pytest.mark.filterwarnings("ignore:.*looks like it has unbuilt state")


class Auxiliary(keras.Model):
    """A model with a head that it calls only in training, before the other layers."""

    def __init__(self) -> None:
        super().__init__()
        self.aux = keras.layers.Dense(2)
        self.dense = keras.layers.Dense(1)

    def call(self, x, training=False):
        return (self.dense(x), self.aux(x)) if training else self.dense(x)


@dataclasses.dataclass
class AuxiliaryConfig(line_experiment.LineConfig):
    pass


@task_factory.register_task_cls(AuxiliaryConfig)
class AuxiliaryTask(LineTask):
    has_train_data = True

    def build_model(self):
        return Auxiliary()

    def build_inputs(self, params, input_context=None):
        if params.is_training and not self.has_train_data:
            raise FileNotFoundError("There is no training data on this machine.")
        return super().build_inputs(params, input_context)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        if isinstance(model_outputs, tuple):
            model_outputs, aux = model_outputs
            aux_losses = [tf.reduce_mean(aux)]
        return super().build_losses(labels, model_outputs, aux_losses)

    def process_metrics(self, metrics, labels, model_outputs, **kwargs):
        outputs = model_outputs[0] if isinstance(model_outputs, tuple) else model_outputs
        metrics[0].update_state(labels, outputs)


@_partly_built
@pytest.mark.parametrize("mode", ["eval", "predict", "load"])
def test_model_with_a_head_called_only_in_training_can_be_used_after_training(
    tmp_path, mode
) -> None:
    predict_data = {"predict_data": {"global_batch_size": 8}}
    params = line_experiment.short_experiment(AuxiliaryConfig, task=predict_data)
    run = functools.partial(train_lib.run_experiment, None, model_dir=str(tmp_path), params=params)
    trained, _ = run(AuxiliaryTask(params.task), "train")
    if mode == "load":
        with loaded_run.built(params) as (ctx, _):
            loaded_run.load_weights(ctx, str(tmp_path / "ckpt-8"))
        model = ctx.model
    else:
        model, _ = run(AuxiliaryTask(params.task), mode)
    assert [w.numpy().tolist() for w in model.weights] == [
        w.numpy().tolist() for w in trained.weights
    ]


@_partly_built
def test_evaluation_warns_if_it_cannot_trace_the_training_step_to_build_a_layer(
    experiment, make_trainer, caplog
) -> None:
    class Task(AuxiliaryTask):
        has_train_data = False

    trainer = make_trainer(experiment(), task_cls=Task, train=False)
    assert trainer.evaluate(tf.constant(-1))["validation_loss"] > 0
    warnings = [r.message for r in caplog.records if r.levelname == "WARNING"]
    assert any("There is no training data on this machine" in text for text in warnings)
