"""The single-architecture trainers of NNI's page on custom trainers, ported line by line."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import search
from official_lite.core import base_task, train_lib
from official_lite.core import config_definitions as cfg
from official_lite.search import FunctionalTrainer
from tests.experiments import evaluations

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.uniform(size=(64, 4, 4)).astype(np.float32)
LABELS = (IMAGES.mean(axis=(1, 2)) > 0.5).astype(np.int32)


class DataLoader:
    """A dataset that yields batches of arrays, as NNI's data loader does."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.dataset = tf.data.Dataset.from_tensor_slices((images, labels)).batch(16)


def base_model(choices: dict[str, Any]) -> keras.Model:
    hidden = keras.layers.Dense(choices["units"], activation=choices["activation"])
    return keras.Sequential([keras.layers.Flatten(), hidden, keras.layers.Dense(2)])


def train(model: keras.Model, dataloader: DataLoader) -> None:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    model.fit(dataloader.dataset, shuffle=False, verbose=0)


def test(model: keras.Model, dataloader: DataLoader) -> float:
    return float(model.evaluate(dataloader.dataset, verbose=0)[1])


test.__test__ = False

mutators = {"units": [2, 4], "activation": ["relu", "tanh"]}


# def fit(model, dataloader):
#     train(model, dataloader)
#     acc = test(model, dataloader)
#     nni.report_final_result(acc)
def fit(model, dataloader):
    train(model, dataloader)
    acc = test(model, dataloader)
    search.report_final_result(acc)


def test_nni_functional_trainer_evaluates_every_model_of_the_grid(tmp_path) -> None:
    # trainer = FunctionalTrainer(fit, dataloader=DataLoader(foo, bar))
    # experiment = RetiariiExperiment(base_model, trainer, mutators, strategy)
    trainer = FunctionalTrainer(fit, dataloader=DataLoader(IMAGES, LABELS))
    experiment = search.Experiment(base_model, trainer, mutators, "grid", direction="maximize")
    study = experiment.run(str(tmp_path))
    assert len(study.trials) == 4
    assert all(0.0 <= trial.value <= 1.0 for trial in study.trials)
    assert experiment.export_top_models()[0] == study.best_params


@dataclasses.dataclass
class AutoEncoderConfig(cfg.TaskConfig):
    """A config without fields of its own."""


# class AutoEncoder(LightningModule):
class AutoEncoder(base_task.Task):
    # def __init__(self):
    #     super().__init__()
    #     self.decoder = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 28*28))
    def __init__(self, params: Any, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        self.decoder = keras.Sequential(
            [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(16)], name="decoder"
        )

    # NNI's base class defines this method, which is called after `__init__`.
    def set_model(self, model: keras.Model) -> None:
        self.model = model

    # def forward(self, x):
    #     embedding = self.model(x)  # let's search for encoder
    #     return embedding
    # training_step, validation_step: z = self.model(x); x_hat = self.decoder(z)
    def build_model(self) -> keras.Model:
        x = keras.Input((16,))
        z = self.model(x)  # model is the one that is searched for
        x_hat = self.decoder(z)
        return keras.Model(x, x_hat)

    # DataLoader(train_dataset, batch_size=100)
    # x, y = batch
    # x = x.view(x.size(0), -1)
    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        x = IMAGES.reshape(len(IMAGES), -1)
        dataset = tf.data.Dataset.from_tensor_slices((x, x)).batch(params.global_batch_size)
        return dataset.repeat() if params.is_training else dataset

    # loss = F.mse_loss(x_hat, x)
    # self.log('train_loss', loss); self.log('val_loss', loss)
    def build_losses(
        self, labels: Any, model_outputs: Any, aux_losses: Sequence[Any] | None = None
    ) -> tf.Tensor:
        return tf.reduce_mean(tf.square(model_outputs - labels))

    # def configure_optimizers(self):
    #     return torch.optim.Adam(self.parameters(), lr=1e-3)
    @classmethod
    def create_optimizer(cls, *_: Any) -> keras.optimizers.Optimizer:
        return keras.optimizers.Adam(1e-3)

    # def on_validation_epoch_end(self):
    #     nni.report_intermediate_result(self.trainer.callback_metrics['val_loss'].item())
    # def teardown(self, stage):
    #     if stage == 'fit':
    #         nni.report_final_result(self.trainer.callback_metrics['val_loss'].item())
    # The study itself reports `search.metric` at each evaluation, and its last value at the end.


def encoder(choices: dict[str, Any]) -> keras.Model:
    return keras.Sequential([keras.layers.Dense(choices["units"], name="embedding")])


@pytest.mark.slow
def test_nni_lightning_module_ported_to_a_task_can_be_searched(tmp_path) -> None:
    # lightning = pl.Lightning(AutoEncoder(), pl.Trainer(max_epochs=10), train_dataloader=...)
    params = cfg.ExperimentConfig(
        task=AutoEncoderConfig(
            train_data=cfg.DataConfig(global_batch_size=16, is_training=True),
            validation_data=cfg.DataConfig(global_batch_size=16, is_training=False),
        ),
        trainer=cfg.TrainerConfig(
            train_steps=8, steps_per_loop=4, validation_interval=4, writers=["jsonl"]
        ),
        runtime=cfg.RuntimeConfig(distribution_strategy="off", execution="graph"),
    )
    before: list[float] = []

    class Watched(AutoEncoder):
        """A task that records the initial weights of its parts."""

        def build_model(self) -> keras.Model:
            model = super().build_model()
            before[:] = [float(tf.reduce_sum(v)) for v in self._parts()]
            trained.append(self)
            return model

        def _parts(self) -> list[tf.Variable]:
            return [self.model.weights[0], self.decoder.weights[0]]

    trained: list[Watched] = []
    experiment = search.Experiment(
        encoder,
        search.TaskTrainer(Watched, params),
        {"units": [2, 3]},
        "grid",
        metric="validation_loss",
        direction="minimize",
    )
    study = experiment.run(str(tmp_path))
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 2
    for trial in study.trials:
        assert list(trial.intermediate_values) == [4, 8]
        assert trial.intermediate_values[8] == trial.value
    for model_dir in (tmp_path / "trials").iterdir():
        task = AutoEncoder(params.task)
        task.set_model(encoder(json.loads((model_dir / "trial.json").read_text())["params"]))
        train_lib.run_experiment(None, task, "eval", params, str(model_dir))
        evaluations.assert_recorded_as_in_training(model_dir)
    after = [float(tf.reduce_sum(v)) for v in trained[-1]._parts()]
    assert all(new != old for new, old in zip(after, before, strict=True))
