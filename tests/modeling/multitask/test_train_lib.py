import contextlib
import dataclasses
import json
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import orbit
from official_lite.checkpoint import model_state
from official_lite.common import errors
from official_lite.core import (
    base_task,
    base_trainer,
    continuous_finetune_lib,
    task_factory,
    trainer_factory,
)
from official_lite.core import config_definitions as cfg
from official_lite.data import arrays
from official_lite.modeling import hyperparams
from official_lite.modeling.multitask import base_model, configs, multitask, train_lib
from official_lite.pipeline import stages
from official_lite.tools import checkpoint_average, loaded_run
from tests import rounding
from tests.modeling.multitask.conftest import (
    TRAINER,
    PullConfig,
    PullModel,
    PullModels,
    PullTask,
    pull_config,
    routines,
    shared_layer,
)

Experiment = Callable[..., Any]
# Eight updates of about four roundings each.
ROUNDINGS = 8 * 4


@pytest.fixture
def run(make_model: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs an experiment with several tasks on a new model."""

    def run(params: Any, mode: str, model_dir: pathlib.Path, **kwargs: Any) -> Any:
        kwargs.setdefault("model", make_model())
        return train_lib.run_experiment(
            distribution_strategy=tf.distribute.get_strategy(),
            task=multitask.MultiTask.from_config(params.task),
            mode=mode,
            params=params,
            model_dir=str(model_dir),
            **kwargs,
        )

    return run


def _multi_eval_experiment(**trainer: Any) -> configs.MultiEvalExperimentConfig:
    """Return an experiment that trains on the first task and is evaluated on both tasks."""
    params = configs.MultiEvalExperimentConfig(
        task=pull_config(0.0),
        eval_tasks=routines(),
        runtime=cfg.RuntimeConfig(distribution_strategy="off"),
    )
    params.override({"trainer": TRAINER})
    params.override({"trainer": trainer})
    return params


def _run_multi_eval(params: Any, mode: str, model_dir: pathlib.Path, **kwargs: Any) -> Any:
    kwargs.setdefault("train_task", task_factory.get_task(params.task))
    return train_lib.run_experiment_with_multitask_eval(
        distribution_strategy=tf.distribute.get_strategy(),
        eval_tasks=[
            task_factory.get_task(routine.task_config, name=routine.task_name)
            for routine in params.eval_tasks
        ],
        mode=mode,
        params=params,
        model_dir=str(model_dir),
        **kwargs,
    )


def _reports(model_dir: pathlib.Path, name: str = "metrics.json") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (model_dir / name).read_text().splitlines()]


def test_joint_training_writes_run_files_and_selects_the_best_checkpoint_by_a_task_metric(
    run: Callable[..., Any], experiment: Experiment, tmp_path: pathlib.Path
) -> None:
    params = experiment(
        trainer_type="joint",
        best_checkpoint_export_subdir="best",
        best_checkpoint_eval_metric="foo|validation_loss",
        best_checkpoint_metric_comp="lower",
    )
    model, logs = run(params, "train_and_eval", tmp_path, run_post_eval=True)
    # `validation_loss` is a mean over six examples.
    rounding.assert_close(logs["foo"]["validation_loss"], model.weight**2, roundings=6)
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["status"], record["global_step"], record["num_parameters"]) == ("done", 8, 1)
    names = {path.name for path in tmp_path.iterdir()}
    assert {"params.yaml", "log.txt", "train", "validation", "ckpt-8.index"} <= names
    # The weight moves away from the target of `foo`, so the first evaluation is the best.
    info = json.loads((tmp_path / "best" / "info.json").read_text())
    assert info["best_ckpt_global_step"] == 4


def test_multitask_run_returns_metrics_only_with_run_post_eval(
    run: Callable[..., Any], experiment: Experiment, tmp_path: pathlib.Path
) -> None:
    _, logs = run(experiment(), "train", tmp_path / "evaluated", run_post_eval=True)
    assert logs.keys() >= {"foo", "bar"}
    model = run(experiment(trainer_type="joint"), "train", tmp_path / "trained")
    rounding.assert_close(model.weight, 1.5 - 0.5 * 0.6**8, roundings=ROUNDINGS)
    run(experiment(), "continuous_eval", tmp_path / "evaluated")
    reports = _reports(tmp_path / "evaluated", "metrics.continuous_eval.json")
    assert [(r["step"], r["split"]) for r in reports] == [(4, "validation"), (8, "validation")]


def test_multitask_run_may_resume_with_other_evaluations_but_not_with_another_loss(
    run: Callable[..., Any], experiment: Experiment, tmp_path: pathlib.Path
) -> None:
    def changed(field: str, value: Any) -> configs.MultiTaskExperimentConfig:
        params = experiment(trainer_type="joint")
        hyperparams.override_by_path(params, f"task.task_routines[1].{field}", value)
        return params

    run(experiment(trainer_type="joint", train_steps=4), "train", tmp_path)
    other_data = {"global_batch_size": 3, "prefetch_buffer_size": 1}
    run(changed("task_config.validation_data", other_data), "train", tmp_path)
    run(changed("eval_steps", 2), "train", tmp_path)
    with pytest.raises(errors.ConfigValueError, match=r"\[bar\]\.task_config\.target: 3\.0 -> 2"):
        run(changed("task_config.target", 2.0), "train", tmp_path)
    run(changed("task_config.target", 2.0), "train", tmp_path, allow_config_change=True)
    fewer = experiment(trainer_type="joint")
    fewer.task.task_routines = fewer.task.task_routines[:1]
    with pytest.raises(errors.ConfigValueError, match=r"routines: \['foo', 'bar'\] -> \['foo'\]"):
        run(fewer, "train", tmp_path)


def test_joint_training_is_resumed_as_interleaved_training_if_config_changes_are_allowed(
    run: Callable[..., Any], experiment: Experiment, tmp_path: pathlib.Path
) -> None:
    run(experiment(trainer_type="joint", train_steps=4), "train", tmp_path)
    params = experiment(trainer_type="interleaving")
    run(params, "train", tmp_path, allow_config_change=True)
    assert json.loads((tmp_path / "run.json").read_text())["global_step"] == 8


@pytest.mark.parametrize(("field", "value"), [("freeze", ["kernel"]), ("name", "darts")])
def test_trainer_option_that_supports_only_one_task_is_refused_in_multitask_training(
    run: Callable[..., Any],
    experiment: Experiment,
    tmp_path: pathlib.Path,
    field: str,
    value: Any,
) -> None:
    with pytest.raises(errors.ConfigValueError, match=f"`{field}` is"):
        run(experiment(**{field: value}), "train", tmp_path)


def test_overfit_batches_is_refused_if_other_tasks_are_evaluated(
    tmp_path: pathlib.Path,
) -> None:
    with pytest.raises(errors.ConfigValueError, match="overfit_batches"):
        _run_multi_eval(_multi_eval_experiment(overfit_batches=1), "train_and_eval", tmp_path)


def test_evaluation_data_that_repeat_forever_are_refused_before_several_tasks_are_trained(
    run: Callable[..., Any],
    experiment: Experiment,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    build_inputs = PullTask.build_inputs

    def build_endless(self: Any, params: Any, input_context: Any = None) -> tf.data.Dataset:
        return build_inputs(self, params, input_context).repeat()

    monkeypatch.setattr(PullTask, "build_inputs", build_endless)
    with pytest.raises(errors.ConfigValueError, match="repeat forever"):
        run(experiment(trainer_type="joint"), "train_and_eval", tmp_path)
    assert not list(tmp_path.glob("ckpt-*"))


@pytest.mark.parametrize("trainer_type", ["joint", "interleaving"])
def test_non_finite_loss_of_several_tasks_with_finite_gradients_is_reported(
    run: Callable[..., Any],
    experiment: Experiment,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    trainer_type: str,
) -> None:
    def build_losses(
        self: Any, labels: Any, model_outputs: Any, aux_losses: Any = None
    ) -> tf.Tensor:
        infinite = tf.stop_gradient(tf.math.log(tf.reduce_min(labels) * 0.0))
        return tf.reduce_mean(model_outputs) + infinite

    monkeypatch.setattr(PullTask, "build_losses", build_losses)
    monkeypatch.setattr(PullTask, "loss", "pull")
    params = experiment(trainer_type=trainer_type, hooks=["non_finite"])
    with pytest.raises(errors.DivergedError, match=r"Step 1 is the first .* The loss is -inf"):
        run(params, "train", tmp_path)


def test_tasks_to_evaluate_may_change_when_the_training_of_one_task_resumes(
    tmp_path: pathlib.Path,
) -> None:
    _run_multi_eval(_multi_eval_experiment(train_steps=4), "train", tmp_path)
    params = _multi_eval_experiment()
    params.eval_tasks = params.eval_tasks[:1]
    _run_multi_eval(params, "train", tmp_path)
    params.task.target = 1.0
    with pytest.raises(errors.ConfigValueError, match=r"task\.target: 0\.0 -> 1\.0"):
        _run_multi_eval(params, "train", tmp_path)
    _run_multi_eval(params, "train", tmp_path, allow_config_change=True)
    task = task_factory.get_task(params.task)
    strategy = tf.distribute.get_strategy()
    params.task.target = 2.0
    train_lib.finetune_with_multitask_eval(
        strategy, task, params, str(tmp_path), allow_config_change=True
    )


def test_run_with_train_epochs_is_evaluated_on_several_tasks_without_training_data(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = _multi_eval_experiment(train_epochs=2)
    params.task.train_data.is_training = True
    _run_multi_eval(params, "train", tmp_path)
    task_cls = type(task_factory.get_task(params.task))
    build_inputs = task_cls.build_inputs

    def without_training_data(self: Any, params: Any, input_context: Any = None) -> Any:
        if params.is_training:
            raise FileNotFoundError("train.csv")
        return build_inputs(self, params, input_context)

    monkeypatch.setattr(task_cls, "build_inputs", without_training_data)
    _run_multi_eval(params, "eval", tmp_path)
    record = json.loads((tmp_path / "run.eval.json").read_text())
    assert (record["global_step"], record["train_steps"]) == (6, 6)


def test_evaluation_of_several_tasks_needs_no_steps_per_epoch_for_a_config_in_epochs(
    run: Callable[..., Any], experiment: Experiment, tmp_path: pathlib.Path
) -> None:
    run(experiment(trainer_type="joint"), "train", tmp_path)
    params = experiment(trainer_type="joint")
    params.override({"trainer": {"train_epochs": 2}})
    run(params, "eval", tmp_path)
    assert (tmp_path / "run.eval.json").exists()
    with pytest.raises(errors.ConfigValueError, match="steps_per_epoch"):
        run(params, "train", tmp_path / "new")


def test_decay_ratio_of_a_schedule_is_converted_to_steps_in_multitask_training(
    run: Callable[..., Any], experiment: Experiment, tmp_path: pathlib.Path
) -> None:
    params = experiment(trainer_type="joint")
    decay = {"type": "cosine", "cosine": {"initial_learning_rate": 0.1, "decay_ratio": 1.0}}
    params.override({"trainer": {"optimizer_config": {"learning_rate": decay}}})
    run(params, "train", tmp_path)
    assert _reports(tmp_path)[-1]["learning_rate"] == 0.0


@dataclasses.dataclass
class ShuffledConfig(cfg.TaskConfig):
    sign: float = 1.0


@task_factory.register_task_cls(ShuffledConfig)
class ShuffledTask(base_task.Task):
    """A regression task that reads its training examples in a random order."""

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        x = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
        y = self.task_config.sign * x.sum(1, keepdims=True)
        return arrays.from_arrays(
            (x, y),
            params.global_batch_size,
            shuffle=params.is_training,
            repeat=params.is_training,
        )

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        return tf.reduce_mean(tf.square(model_outputs - labels))


SHUFFLED = cfg.DataConfig(global_batch_size=3, is_training=True)


def _use_shuffled_tasks(params: Any, **fields: Any) -> None:
    """Replace both tasks by tasks of opposite signs, and let them learn slowly."""
    for routine, sign in zip(params.task.task_routines, (1.0, -1.0), strict=True):
        routine.task_config = ShuffledConfig(sign=sign, train_data=SHUFFLED, **fields)
    params.trainer.optimizer_config.learning_rate.constant.learning_rate = 0.01
    keras.utils.set_random_seed(1)


class DroppingModels(base_model.MultiTaskBaseModel):
    def _instantiate_sub_tasks(self) -> dict[str, keras.Model]:
        layers = keras.layers
        shared = layers.Dense(8)
        return {
            name: keras.Sequential([layers.Input((3,)), shared, layers.Dropout(0.5), head])
            for name, head in (("foo", layers.Dense(1)), ("bar", layers.Dense(1)))
        }


class RecurrentModel(keras.Model):
    """A model with a recurrent layer in a list, where TensorFlow does not find its states."""

    def __init__(self, recurrent: keras.layers.Layer) -> None:
        super().__init__()
        self.blocks = [recurrent]
        self.head = keras.layers.Dense(1)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.head(self.blocks[0](tf.reshape(x, (3, 3, 1))))


class RecurrentModels(base_model.MultiTaskBaseModel):
    """Models that share a recurrent layer, which carries its states from batch to batch."""

    def _instantiate_sub_tasks(self) -> dict[str, keras.Model]:
        shared = keras.layers.SimpleRNN(4, stateful=True)
        return {name: RecurrentModel(shared) for name in ("foo", "bar")}


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("trainer_type", "models"),
    [("joint", DroppingModels), ("interleaving", DroppingModels), ("joint", RecurrentModels)],
)
def test_resumed_run_with_shuffling_and_random_or_recurrent_layers_matches_an_uninterrupted_run(
    run: Callable[..., Any],
    experiment: Experiment,
    tmp_path: pathlib.Path,
    trainer_type: str,
    models: Callable[[], Any],
) -> None:
    def train(name: str, train_steps: int) -> list[np.ndarray]:
        params = experiment(trainer_type=trainer_type, train_steps=train_steps)
        _use_shuffled_tasks(params)
        model = run(params, "train", tmp_path / name, model=models())
        return [v.numpy() for v in model.trainable_variables]

    unbroken = train("unbroken", 12)
    train("resumed", 4)
    for a, b in zip(train("resumed", 12), unbroken, strict=True):
        np.testing.assert_array_equal(a, b)


def test_multitask_run_resumed_after_a_recovery_equals_one_that_was_not_interrupted(
    experiment: Experiment, tmp_path: pathlib.Path
) -> None:
    def train(name: str, train_steps: int) -> list[np.ndarray]:
        params = experiment(
            trainer_type="interleaving", train_steps=train_steps, recovery_max_trials=1
        )
        _use_shuffled_tasks(params)
        spoiled: list[int] = []

        def spoil_once(hook: Any) -> None:
            # The loss of step 8, which has been computed, is finite.
            if hook.controller.step == 8 and not spoiled:
                spoiled.append(8)
                weight = hook.trainer.model.trainable_variables[0]
                weight.assign(np.full(weight.shape, np.nan))

        runner = train_lib.create_runner(
            distribution_strategy=tf.distribute.get_strategy(),
            task=multitask.MultiTask.from_config(params.task),
            model=DroppingModels(),
            mode="train",
            params=params,
            model_dir=str(tmp_path / name),
            hooks=[orbit.hooks.LambdaHook(after_step=spoil_once, every_n_steps=4)],
        )
        model, _ = runner.run()
        return [v.numpy() for v in model.trainable_variables]

    unbroken = train("unbroken", 12)
    assert all(np.isfinite(weight).all() for weight in unbroken)
    train("resumed", 8)
    for a, b in zip(train("resumed", 12), unbroken, strict=True):
        np.testing.assert_array_equal(a, b)
    record = json.loads((tmp_path / "resumed" / "recovery.json").read_text())
    assert [blow_up["step"] for blow_up in record["blow_ups"]] == [8]


def _swa(**arguments: Any) -> dict[str, Any]:
    name = "stochastic_weight_averaging"
    return {"name": name, "start_step": 0, "every_n_steps": 4, **arguments}


@pytest.mark.parametrize("trainer_type", ["joint", "interleaving"])
def test_weights_trained_on_several_tasks_are_averaged_and_evaluated_on_each_task(
    run: Callable[..., Any], experiment: Experiment, tmp_path: pathlib.Path, trainer_type: str
) -> None:
    params = experiment(trainer_type=trainer_type, hooks=[_swa()], writers=["jsonl"])
    models = {"joint": PullModels, "interleaving": lambda: PullModel(shared_layer())}
    run(params, "train_and_eval", tmp_path, model=models[trainer_type]())
    assert (tmp_path / "swa" / "ckpt-8.index").exists()
    names = {name for report in _reports(tmp_path) for name in report}
    assert {"swa/foo/validation_loss", "swa/bar/validation_loss"} <= names


class NormalizedModels(base_model.MultiTaskBaseModel):
    def _instantiate_sub_tasks(self) -> dict[str, keras.Model]:
        layers = keras.layers
        shared = layers.BatchNormalization()
        return {
            name: keras.Sequential([layers.Input((1,)), shared, layers.Dense(1)])
            for name in ("foo", "bar")
        }


def test_recalibrating_batch_normalization_of_several_tasks_raises_before_training(
    run: Callable[..., Any], experiment: Experiment, tmp_path: pathlib.Path
) -> None:
    params = experiment(trainer_type="joint", hooks=[_swa()])
    with pytest.raises(errors.ConfigTypeError, match="set `recalibration_steps` to 0"):
        run(params, "train", tmp_path / "refused", model=NormalizedModels())
    assert not list((tmp_path / "refused").glob("ckpt-*"))
    params = experiment(trainer_type="joint", hooks=[_swa(recalibration_steps=0)])
    run(params, "train", tmp_path / "trained", model=NormalizedModels())
    assert (tmp_path / "trained" / "swa" / "ckpt-8.index").exists()


def test_diverging_multitask_run_raises_and_is_recorded_as_failed(
    run: Callable[..., Any], experiment: Experiment, tmp_path: pathlib.Path
) -> None:
    params = experiment(trainer_type="joint", loss_upper_bound=1.0)
    with pytest.raises(errors.DivergedError):
        run(params, "train", tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["status"] == "failed"


def test_eval_mode_evaluates_the_averaged_weights_of_a_multitask_run(
    run: Callable[..., Any], experiment: Experiment, tmp_path: pathlib.Path
) -> None:
    ema = {"ema": {"average_decay": 0.9, "dynamic_decay": False}}
    params = experiment(trainer_type="joint", optimizer_config=ema)
    trained, logs = run(params, "train_and_eval", tmp_path, run_post_eval=True)
    evaluated, again = run(params, "eval", tmp_path, run_post_eval=True)
    loss = float(logs["foo"]["validation_loss"])
    assert float(again["foo"]["validation_loss"]) == loss
    assert loss != pytest.approx(trained.weight**2)
    assert evaluated.weight == trained.weight
    assert list((tmp_path / "ema_checkpoints").glob("average_weights-8.index"))


@pytest.mark.sample(1)
@pytest.mark.parametrize("trainer_type", ["joint", "interleaving"])
@pytest.mark.parametrize("evaluates_apart", [False, True])
def test_training_resumed_from_the_best_checkpoint_equals_an_uninterrupted_run(
    experiment: Experiment, tmp_path: pathlib.Path, trainer_type: str, evaluates_apart: bool
) -> None:
    def build(mode: str, name: str, train_steps: int = 8) -> Any:
        params = experiment(
            trainer_type=trainer_type,
            train_steps=train_steps,
            best_checkpoint_export_subdir="best",
            best_checkpoint_eval_metric="foo|validation_loss",
        )
        _use_shuffled_tasks(params, validation_data=SHUFFLED.replace(is_training=False))
        return train_lib.create_runner(
            distribution_strategy=tf.distribute.get_strategy(),
            task=multitask.MultiTask.from_config(params.task),
            model=DroppingModels(),
            mode=mode,
            params=params,
            model_dir=str(tmp_path / name),
            restore=False,
        )

    with contextlib.closing(build("train", "unbroken")) as unbroken:
        unbroken.train()
    mode = "train" if evaluates_apart else "train_and_eval"
    with contextlib.closing(build(mode, "stopped", train_steps=4)) as stopped:
        stopped.train()
    if evaluates_apart:
        with contextlib.closing(build("continuous_eval", "stopped", train_steps=4)) as judge:
            judge.evaluate()
    best = tmp_path / "stopped" / "best" / "best_ckpt-4"
    recorded = json.loads((best.parent / "info.json").read_text())

    with contextlib.closing(build("eval", "evaluated")) as evaluating:
        evaluating.controller.restore_checkpoint(str(best))
        results = evaluating.evaluate()
    for name in ("foo", "bar"):
        assert float(results[name]["validation_loss"]) == recorded[name]["validation_loss"]

    with contextlib.closing(build("train", "resumed")) as resumed:
        resumed.controller.restore_checkpoint(str(best))
        resumed.train()
    weights = [
        [v.numpy() for v in runner.trainer.model.trainable_variables]
        for runner in (resumed, unbroken)
    ]
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)


class ListModel(keras.Model):
    """A model with layers in a list, which TensorFlow does not track."""

    def __init__(self, *blocks: keras.layers.Layer) -> None:
        super().__init__()
        self.blocks = [*blocks]

    def call(self, x: tf.Tensor) -> tf.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class ListModels(base_model.MultiTaskBaseModel):
    """Two models that share a layer; each has a layer of its own with the same shape."""

    def _instantiate_sub_tasks(self) -> dict[str, keras.Model]:
        self.checkpoint_items = {"encoder": shared_layer()}
        encoder = self.checkpoint_items["encoder"]
        models = {name: ListModel(encoder, shared_layer()) for name in ("foo", "bar")}
        for model in models.values():
            model(tf.ones((1, 1)))
        return models

    def values(self) -> list[float]:
        return [w.numpy().item() for part in self.sub_tasks.values() for w in part.weights]


@pytest.mark.parametrize("averages", [False, True])
def test_weights_of_layers_in_lists_of_several_models_are_loaded_from_a_run(
    run: Callable[..., Any], experiment: Experiment, tmp_path: pathlib.Path, averages: bool
) -> None:
    params = experiment(trainer_type="joint")
    params.trainer.optimizer_config.learning_rate.constant.learning_rate = 0.01
    if averages:
        params.override({"trainer": {"optimizer_config": {"ema": {"average_decay": 0.5}}}})
    trained = run(params, "train", tmp_path, model=ListModels())
    assert len(set(trained.values())) == 3
    if averages:
        path = tmp_path / "ema_checkpoints" / "average_weights-8"
        items = model_state.weight_items(trained)
        tf.train.Checkpoint(**items).read(str(path)).assert_existing_objects_matched()
    ctx = stages.ExperimentContext(
        params=params, mode="", model_dir=str(tmp_path), strategy=tf.distribute.get_strategy()
    )
    ctx.model = ListModels()
    ctx.optimizer = multitask.MultiTask.create_optimizer(params.trainer.optimizer_config)
    loaded_run.load_weights(ctx, str(tmp_path / "ckpt-8"))
    assert ctx.model.values() == trained.values()


class HeadModel(PullModel):
    """A model with a head that it calls only in training."""

    def __init__(self, shared: keras.layers.Layer) -> None:
        super().__init__(shared)
        self.head = keras.layers.Dense(1)

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        if training:
            self.add_loss(tf.reduce_mean(tf.square(self.head(x))))
        return super().call(x)


class HeadModels(PullModels):
    def _instantiate_sub_tasks(self) -> dict[str, keras.Model]:
        return {name: HeadModel(self.shared) for name in ("foo", "bar")}


# Keras warns of a model whose first call does not build all of its layers.
@pytest.mark.filterwarnings("ignore:.*looks like it has unbuilt state")
def test_models_with_heads_called_only_in_training_can_be_evaluated_on_several_tasks(
    run: Callable[..., Any], experiment: Experiment, tmp_path: pathlib.Path
) -> None:
    ema = {"optimizer_config": {"ema": {"average_decay": 0.5}}}
    params = experiment(trainer_type="joint", **ema)
    trained = run(params, "train", tmp_path, model=HeadModels())
    evaluated = run(params, "eval", tmp_path, model=HeadModels())
    assert len(evaluated.variables) == 1 + 2 * 2
    for expected, got in zip(trained.variables, evaluated.variables, strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.filterwarnings("ignore:.*looks like it has unbuilt state")
def test_model_with_a_head_called_only_in_training_can_be_evaluated_on_other_tasks(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PullTask, "build_model", lambda self: HeadModel(shared_layer()))
    params = _multi_eval_experiment()
    for routine in params.eval_tasks:
        routine.task_config.train_data = None
    trained, _ = _run_multi_eval(params, "train", tmp_path)
    evaluated, _ = _run_multi_eval(params, "eval", tmp_path)
    assert len(evaluated.weights) == 1 + 2
    for expected, got in zip(trained.weights, evaluated.weights, strict=True):
        np.testing.assert_array_equal(got, expected)


class JudgeModel(PullModel):
    """A model with a head that it calls only in evaluations, and whose outputs stay 0."""

    def __init__(self, shared: keras.layers.Layer) -> None:
        super().__init__(shared)
        self.head = keras.layers.Dense(1, kernel_initializer="zeros")

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        outputs = super().call(x)
        return outputs if training else outputs + self.head(x)


class JudgeModels(PullModels):
    def _instantiate_sub_tasks(self) -> dict[str, keras.Model]:
        return {name: JudgeModel(self.shared) for name in ("foo", "bar")}


def test_models_with_heads_called_only_in_evaluations_can_be_trained(
    run: Callable[..., Any],
    experiment: Experiment,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    params = experiment(trainer_type="joint")
    models = JudgeModels()
    _, logs = run(params, "train_and_eval", tmp_path / "all", model=models, run_post_eval=True)
    assert len(models.variables) == 1 + 2 * 2
    rounding.assert_close(logs["foo"]["validation_loss"], models.weight**2, roundings=6)

    monkeypatch.setattr(PullTask, "build_model", lambda self: JudgeModel(shared_layer()))
    params = _multi_eval_experiment()
    model, logs = _run_multi_eval(params, "train_and_eval", tmp_path / "one", run_post_eval=True)
    weight = float(model.shared.kernel.numpy()[0, 0])
    rounding.assert_close(logs["bar"]["validation_loss"], (3 - weight) ** 2, roundings=6)


@trainer_factory.register_trainer_cls("multi_eval_test")
class OwnTrainer(base_trainer.Trainer):
    """A trainer of another class, which prepares the model before its steps can be traced."""

    def __init__(self, config: Any, task: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        model.is_prepared = True
        super().__init__(config, task, model, *args, **kwargs)


class PreparedModel(JudgeModel):
    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        assert self.is_prepared
        return super().call(x, training)


class SpareModel(PullModel):
    """A model with a layer that it never calls."""

    def __init__(self, shared: keras.layers.Layer) -> None:
        super().__init__(shared)
        self.spare = keras.layers.Dense(1)


@pytest.mark.filterwarnings("ignore:.*looks like it has unbuilt state")
@pytest.mark.parametrize(
    ("trainer", "model_cls", "num_weights"),
    [("multi_eval_test", PreparedModel, 1 + 2), (None, SpareModel, 1)],
)
def test_default_and_custom_trainers_evaluate_other_tasks_without_validation_data_of_their_own(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    trainer: str | None,
    model_cls: Any,
    num_weights: int,
) -> None:
    monkeypatch.setattr(PullTask, "build_model", lambda self: model_cls(shared_layer()))
    params = _multi_eval_experiment(name=trainer)
    params.task.validation_data = None
    model, logs = _run_multi_eval(params, "train_and_eval", tmp_path, run_post_eval=True)
    assert len(model.weights) == num_weights
    _, again = _run_multi_eval(params, "eval", tmp_path, run_post_eval=True)
    for name in ("foo", "bar"):
        assert float(again[name]["validation_loss"]) == float(logs[name]["validation_loss"])


def test_evaluation_of_several_tasks_without_a_checkpoint_raises(
    run: Callable[..., Any], experiment: Experiment, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(errors.CheckpointError, match="no checkpoint"):
        run(experiment(), "eval", tmp_path)


@dataclasses.dataclass
class CountingConfig(PullConfig):
    pass


@task_factory.register_task_cls(CountingConfig)
class CountingTask(PullTask):
    """A task that counts its training steps, and reports the count as a part of its loss."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.count = tf.Variable(0.0)

    def train_step(self, inputs: Any, model: Any, optimizer: Any, metrics: Any = None) -> Any:
        self.count.assign_add(1.0)
        return super().train_step(inputs, model, optimizer, metrics)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        return super().build_losses(labels, model_outputs, aux_losses) + self.count


def test_evaluation_of_several_tasks_restores_the_variables_that_the_tasks_own(
    run: Callable[..., Any], experiment: Experiment, tmp_path: pathlib.Path
) -> None:
    params = experiment(trainer_type="interleaving")
    first = params.task.task_routines[0]
    data = first.task_config.train_data
    first.task_config = CountingConfig(train_data=data, validation_data=data)
    _, logs = run(params, "train", tmp_path, run_post_eval=True)
    _, again = run(params, "eval", tmp_path, run_post_eval=True)
    loss = float(logs["foo"]["validation_loss"])
    assert loss > 1.0
    assert float(again["foo"]["validation_loss"]) == loss


class PullsConfig(configs.MultiTaskConfig):
    pass


class Pulls(multitask.MultiTask):
    def build_multitask_model(self) -> PullModels:
        return PullModels()


task_factory.register_task_cls(PullsConfig)(Pulls.from_config)


def test_averaging_multitask_checkpoints_preserves_the_variables_that_the_tasks_own(
    run: Callable[..., Any], experiment: Experiment, tmp_path: pathlib.Path
) -> None:
    params = experiment(trainer_type="interleaving")
    params.task = PullsConfig(task_routines=routines())
    first = params.task.task_routines[0]
    data = first.task_config.train_data
    first.task_config = CountingConfig(train_data=data, validation_data=data)
    params.pipeline.build = "official_lite.pipeline.multitask_build:MultiTaskBuild"
    run(params, "train", tmp_path / "run")
    paths = [str(tmp_path / "run" / f"ckpt-{step}") for step in (4, 8)]
    written = checkpoint_average.write_average(params, paths, str(tmp_path / "mean"))

    def count_in(path: str) -> list[float]:
        names = [name for name, _ in tf.train.list_variables(path)]
        reader = tf.train.load_checkpoint(path)
        return [float(reader.get_tensor(n)) for n in names if n.startswith("task_attributes_foo/")]

    assert count_in(written) == count_in(paths[-1])
    assert count_in(written)[0] > 0


def test_evaluating_an_init_checkpoint_on_several_tasks_uses_its_averaged_weights(
    tmp_path: pathlib.Path,
) -> None:
    params = _multi_eval_experiment(optimizer_config={"ema": {"average_decay": 0.9}})
    _, logs = _run_multi_eval(params, "train", tmp_path / "trained", run_post_eval=True)
    params.task.init_checkpoint = str(tmp_path / "trained")
    _, again = _run_multi_eval(params, "eval", tmp_path / "evaluated", run_post_eval=True)
    for name in ("foo", "bar"):
        assert float(again[name]["validation_loss"]) == float(logs[name]["validation_loss"])


class LoadedModels(PullModels):
    def initialize(self) -> None:
        self.shared.kernel.assign([[0.0]])


class LoadedTask(PullTask):
    """A task that loads its own weights; its class is not registered."""

    def initialize(self, model: keras.Model) -> None:
        model.shared.kernel.assign([[0.0]])


def test_model_or_task_that_loads_its_own_weights_is_evaluated_without_a_checkpoint(
    run: Callable[..., Any], experiment: Experiment, tmp_path: pathlib.Path
) -> None:
    model = LoadedModels()
    _, logs = run(experiment(), "eval", tmp_path / "all", model=model, run_post_eval=True)
    assert float(logs["bar"]["validation_loss"]) == 9.0
    params = _multi_eval_experiment()
    task = LoadedTask(params.task)
    _, logs = _run_multi_eval(params, "eval", tmp_path / "one", train_task=task, run_post_eval=True)
    assert float(logs["bar"]["validation_loss"]) == 9.0


def test_best_checkpoint_saved_by_a_multitask_evaluation_job_contains_the_position_of_training_data(
    tmp_path: pathlib.Path,
) -> None:
    params = _multi_eval_experiment(
        best_checkpoint_export_subdir="best",
        best_checkpoint_eval_metric="foo|validation_loss",
        best_checkpoint_metric_comp="lower",
    )
    _run_multi_eval(params, "train", tmp_path)
    _run_multi_eval(params, "continuous_eval", tmp_path)

    def position_in(path: pathlib.Path) -> list[int]:
        reader = tf.train.load_checkpoint(str(path))
        names = ("batches_read", "skipped_batches", "micro_batches", "batch_size")
        return [int(reader.get_tensor(f"{name}/.ATTRIBUTES/VARIABLE_VALUE")) for name in names]

    position = position_in(tmp_path / "best" / "best_ckpt-8")
    assert position == position_in(tmp_path / "ckpt-8") == [8, 0, 1, 2]


def test_init_checkpoint_requires_a_model_that_defines_initialize(
    run: Callable[..., Any],
    experiment: Experiment,
    make_model: Callable[..., Any],
    tmp_path: pathlib.Path,
) -> None:
    class Pretrained(make_model):  # the fixture returns a class
        def initialize(self) -> None:
            self.shared.kernel.assign([[0.0]])

    params = experiment()
    with pytest.raises(errors.CheckpointError, match="random weights"):
        run(params, "eval", tmp_path)
    params.task.init_checkpoint = "somewhere"
    with pytest.raises(errors.ConfigValueError, match="init_checkpoint"):
        run(params, "train", tmp_path)
    params.runtime.run_eagerly = True
    _, logs = run(params, "eval", tmp_path, model=Pretrained(), run_post_eval=True)
    assert float(logs["bar"]["validation_loss"]) == 9.0


def test_model_trained_on_one_task_is_evaluated_on_several_tasks(tmp_path: pathlib.Path) -> None:
    params = _multi_eval_experiment()
    params.eval_tasks[1].eval_steps = 1
    trained_steps: list[int] = []
    eval_steps: list[Any] = []

    def train_actions(*, params: Any, trainer: Any, model_dir: str, checkpoint_manager: Any) -> Any:
        assert checkpoint_manager.directory == model_dir == str(tmp_path)
        return [lambda logs: trained_steps.append(int(trainer.global_step.numpy()))]

    def eval_actions(params: Any, evaluator: Any, model_dir: str) -> Any:
        return [lambda logs: eval_steps.append(evaluator.eval_steps)]

    model, logs = _run_multi_eval(
        params,
        "train_and_eval",
        tmp_path,
        run_post_eval=True,
        train_actions_factory=train_actions,
        eval_actions_factory=eval_actions,
    )
    assert trained_steps == [4, 8]
    assert eval_steps == [{"foo": None, "bar": 1}] * 2
    weight = float(model.shared.kernel.numpy()[0, 0])
    # Only the task `foo` is trained: each step multiplies the weight by 1 - 0.2.
    rounding.assert_close(weight, 0.8**8, roundings=ROUNDINGS)
    rounding.assert_close(logs["bar"]["validation_loss"], (3 - weight) ** 2, roundings=6)
    _, again = _run_multi_eval(params, "eval", tmp_path, run_post_eval=True)
    assert float(again["bar"]["validation_loss"]) == float(logs["bar"]["validation_loss"])


@dataclasses.dataclass
class BiasedConfig(PullConfig):
    pass


@task_factory.register_task_cls(BiasedConfig)
class BiasedTask(PullTask):
    """A task whose model also has a bias."""

    def build_model(self) -> keras.Model:
        return PullModel(keras.layers.Dense(1, kernel_initializer="ones"))


def test_averaged_weights_of_a_partly_frozen_model_are_evaluated_on_several_tasks(
    tmp_path: pathlib.Path,
) -> None:
    ema = {"ema": {"average_decay": 0.9, "dynamic_decay": False}}
    params = _multi_eval_experiment(freeze=["bias"], optimizer_config=ema)
    data = params.task.train_data
    params.task = BiasedConfig(target=0.0, train_data=data, validation_data=data)
    _, logs = _run_multi_eval(params, "train_and_eval", tmp_path, run_post_eval=True)
    _, again = _run_multi_eval(params, "eval", tmp_path, run_post_eval=True)
    for name in ("foo", "bar"):
        assert float(again[name]["validation_loss"]) == float(logs[name]["validation_loss"])


def test_evaluation_of_several_tasks_uses_the_virtual_replicas_of_the_training(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: set[int] = set()
    validation_step = PullTask.validation_step

    def counting_step(self: Any, inputs: Any, model: Any, metrics: Any = None) -> Any:
        counts.add(tf.distribute.get_strategy().num_replicas_in_sync)
        return validation_step(self, inputs, model, metrics)

    monkeypatch.setattr(PullTask, "validation_step", counting_step)
    _run_multi_eval(_multi_eval_experiment(virtual_replicas=2), "train_and_eval", tmp_path)
    # A step is also traced to build layers, outside of the virtual replicas.
    assert 2 in counts


def test_fine_tuned_model_is_evaluated_on_several_tasks(tmp_path: pathlib.Path) -> None:
    params = _multi_eval_experiment(train_steps=4)
    _run_multi_eval(params, "train", tmp_path / "pretrain")
    params.task.init_checkpoint = str(tmp_path / "pretrain")
    logs = continuous_finetune_lib.run_continuous_finetune(
        "continuous_train_and_eval",
        params,
        str(tmp_path / "job"),
        run_post_eval=True,
        pretrain_steps=4,
        finetune=train_lib.finetune_with_multitask_eval,
    )
    # Squaring doubles the relative error.
    rounding.assert_close(logs["foo"]["validation_loss"], (0.8**8) ** 2, roundings=4 * ROUNDINGS)
