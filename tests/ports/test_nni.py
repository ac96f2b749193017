"""The code of NNI's page on trainers: its auto-encoder, its layer choice and its trainer."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from experiments.vision.digits import data
from official_lite import nas, telemetry
from official_lite.core import base_task, train_lib, trainer_factory
from official_lite.core import config_definitions as cfg
from official_lite.data import arrays
from official_lite.nas import differentiable, one_shot_trainer
from tests.experiments import evaluations


class AutoEncoder(base_task.Task):
    """A task that owns the decoder and is used to search for the encoder."""

    def __init__(self, params, **kwargs):
        super().__init__(params, **kwargs)
        self.model = None

    def set_model(self, model):
        self.model = model

    def build_model(self):
        if self.model is None:
            with nas.fixed_arch(self.task_config.arch):
                self.set_model(encoder())
        self.decoder = keras.Sequential(
            [keras.layers.Dense(64), keras.layers.ReLU(), keras.layers.Dense(8 * 8)]
        )
        inputs = keras.Input((64,))
        return keras.Model(inputs, self.decoder(self.model(inputs)))

    def build_inputs(self, params, input_context=None):
        images, labels = data.load_split("train" if params.is_training else "validation")
        return arrays.from_arrays(
            (images, labels),
            params.global_batch_size,
            shuffle=bool(params.is_training),
            repeat=bool(params.is_training),
            input_context=input_context,
        )

    def train_step(self, inputs, model, optimizer, metrics=None):
        x, _ = inputs
        x = tf.reshape(x, [tf.shape(x)[0], -1])
        with tf.GradientTape() as tape:
            x_hat = model(x, training=True)
            loss = tf.reduce_mean(tf.square(x_hat - x))
            share = loss / tf.distribute.get_strategy().num_replicas_in_sync
        telemetry.put_scalar("train_loss", loss)
        gradients = tape.gradient(share, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return {"loss": loss}

    def validation_step(self, inputs, model, metrics=None):
        x, _ = inputs
        x = tf.reshape(x, [tf.shape(x)[0], -1])
        return {"loss": tf.reduce_mean(tf.square(model(x, training=False) - x))}


def encoder():
    """Build an encoder from 64 pixels to an embedding of three numbers."""
    inputs = keras.Input((64,))
    x = nas.LayerChoice(
        {
            "wide": lambda: keras.layers.Dense(64, activation="relu"),
            "zero": lambda: keras.layers.Rescaling(0.0),
        },
        label="hidden",
    )(inputs)
    return keras.Model(inputs, keras.layers.Dense(3)(x))


class DartsLayerChoice(keras.layers.Layer):
    def __init__(self, layer_choice):
        super().__init__()
        self.label = layer_choice.label
        self.op_choices = dict(layer_choice.candidates)
        noise = keras.random.normal([len(self.op_choices)]) * 1e-3
        self.alpha = keras.Variable(noise, name="alpha")

    def call(self, x):
        op_results = tf.stack([op(x) for op in self.op_choices.values()])
        alpha_shape = [-1] + [1] * (len(op_results.shape) - 1)
        return tf.reduce_sum(op_results * tf.reshape(tf.nn.softmax(self.alpha), alpha_shape), 0)

    @property
    def variables(self):
        return [self.alpha]


class DartsTrainer(one_shot_trainer.OneShotTrainer):
    def resolve(self, model):
        self.nas_modules = []
        nas.replace_layer_choice(model, DartsLayerChoice, self.nas_modules)
        return self.nas_modules

    def arch_gradients(self, inputs):
        return differentiable.first_order(
            self.loss, val=inputs[one_shot_trainer.VAL], alphas=self.alphas
        )

    def export(self):
        result = {}
        for name, module in self.nas_modules:
            if name not in result:
                result[name] = select_best_of_module(module)
        return result


def select_best_of_module(module):
    return list(module.op_choices)[int(tf.argmax(module.alpha))]


def _params(**overrides):
    params = cfg.ExperimentConfig(
        task=nas.ArchTaskConfig(
            train_data=cfg.DataConfig(global_batch_size=64, is_training=True),
            validation_data=cfg.DataConfig(global_batch_size=120, drop_remainder=False),
        ),
        trainer=nas.OneShotTrainerConfig(
            train_steps=60,
            steps_per_loop=20,
            checkpoint_interval=60,
            validation_interval=60,
            one_shot=nas.OneShotConfig(arch_learning_rate=0.05),
            optimizer_config=cfg.OptimizationConfig(
                {
                    "optimizer": {"type": "adam"},
                    "learning_rate": {"type": "constant", "constant": {"learning_rate": 1e-3}},
                }
            ),
        ),
        runtime=cfg.RuntimeConfig(distribution_strategy="off", execution="graph"),
    )
    params.override(overrides)
    return params


def test_auto_encoder_task_trains_the_encoder_passed_to_set_model(tmp_path):
    params = _params(task={"arch": {"hidden": "wide"}})
    task = AutoEncoder(params.task)
    with nas.fixed_arch({"hidden": "wide"}):
        task.set_model(encoder())
    given = task.model
    before = [w.numpy() for w in given.weights]
    model, _ = train_lib.run_experiment(None, task, "train_and_eval", params, str(tmp_path))
    assert given in model.layers
    assert not any(map(np.array_equal, before, [w.numpy() for w in given.weights]))
    records = [json.loads(line) for line in (tmp_path / "metrics.json").read_text().splitlines()]
    losses = [r["train_loss"] for r in records if "train_loss" in r]
    assert losses[-1] < losses[0]
    assert any("validation_loss" in r for r in records)
    train_lib.run_experiment(None, AutoEncoder(params.task), "eval", params, str(tmp_path))
    evaluations.assert_recorded_as_in_training(tmp_path)


@pytest.mark.sample(1)
@pytest.mark.parametrize("trainer", ["darts", f"{__file__}:DartsTrainer"])
def test_search_over_the_unchanged_nni_auto_encoder_task_finds_the_wide_layer(trainer, tmp_path):
    params = _params(trainer={"name": trainer})
    for mode in ("train_and_eval", "eval"):
        train_lib.run_experiment(None, AutoEncoder(params.task), mode, params, str(tmp_path))
    arch = nas.read_arch(tmp_path)
    assert arch == {"hidden": "wide"}
    evaluations.assert_recorded_as_in_training(tmp_path)


def test_search_trainer_fits_and_exports_its_architecture_from_python():
    params = _params()
    task = AutoEncoder(params.task)
    optimizer = task.create_optimizer(params.trainer.optimizer_config, params.runtime)
    trainer = DartsTrainer(params, task, task.build_model(), optimizer, evaluate=False)
    trainer.fit()
    assert trainer.export() == trainer.export() == {"hidden": "wide"}


def test_user_defined_fit_accepts_a_model_built_with_fixed_arch():
    """As in NNI's FunctionalTrainer, `fit(model, dataloader)` trains and evaluates the model."""

    def fit(model, dataloader):
        model.compile("adam", "mse")
        model.fit(dataloader, epochs=1, shuffle=False, verbose=0)
        return float(model.evaluate(dataloader, verbose=0))

    images, _ = data.load_split("train")
    x = images.reshape(-1, 64)
    dataloader = tf.data.Dataset.from_tensor_slices((x, x[:, :3])).batch(100)
    results = {}
    for name in ("wide", "zero"):
        with nas.fixed_arch({"hidden": name}):
            results[name] = fit(encoder(), dataloader=dataloader)
    assert results["wide"] < results["zero"]


def test_layer_choice_labels_are_the_same_in_each_new_model():
    """NNI numbered the labels differently in each new model, so saved files no longer fitted."""
    assert nas.space_of(encoder()) == nas.space_of(encoder()) == {"hidden": ["wide", "zero"]}


@pytest.mark.parametrize("name", ["enas", "proxyless", "spos"])
def test_repeated_exports_return_the_same_best_architecture(name):
    """NNI's trainers of these names exported a random sample, a different one at each call."""
    params = _params(trainer={"name": name, "train_steps": 2})
    task = AutoEncoder(params.task)
    trainer = trainer_factory.create_trainer(params, task, train=True, evaluate=False)
    for alpha in trainer.alphas:
        alpha.assign([0.0, 0.1])
    exported = [trainer.export() for _ in range(5)]
    assert all(one == exported[0] for one in exported)
    if trainer.alphas:
        assert exported[0] == {"hidden": "zero"}


def test_gradients_are_clipped_at_the_configured_norm():
    """NNI's trainer accepted `grad_clip` but always clipped at 5."""
    moved = []
    for norm in (0.0, 1e-6):
        params = _params(trainer={"name": "darts"})
        params.trainer.optimizer_config.override(
            {"optimizer": {"type": "sgd", "sgd": {"global_clipnorm": norm}}}, is_strict=False
        )
        keras.utils.set_random_seed(0)
        task = AutoEncoder(params.task)
        trainer = trainer_factory.create_trainer(params, task, train=True, evaluate=False)
        before = [w.numpy() for w in trainer.model.weights]
        trainer.train(tf.constant(1))
        after = [w.numpy() for w in trainer.model.weights]
        moved.append(max(np.abs(a - b).max() for a, b in zip(after, before, strict=True)))
    assert moved[1] < 1e-6 < moved[0]


def test_search_without_a_reward_metric_minimizes_the_loss():
    """NNI's strategies disagreed about whether higher values are better."""
    params = _params(trainer={"name": "spos", "train_steps": 40})
    task = AutoEncoder(params.task)
    trainer = trainer_factory.create_trainer(params, task, train=True, evaluate=False)
    trainer.train(tf.constant(40))
    scores = {arch["hidden"]: score for score, arch in trainer.rank()}
    assert 0.0 > scores["wide"] > scores["zero"]
