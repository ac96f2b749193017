"""Tests of what a run restores from a directory that another program, model or trainer wrote."""

import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import keras2, orbit
from official_lite.checkpoint import async_checkpoint_manager, latest, model_state
from official_lite.common import errors
from official_lite.core import base_trainer, checkpoint_state, train_lib, trainer_factory
from official_lite.modeling.optimization import optimizer_factory
from tests import line_experiment

_STEP = 4
_EMA = {"optimizer_config": {"ema": {"average_decay": 0.5}}}


def _save(directory: pathlib.Path, **items: Any) -> None:
    """Write `ckpt-4` with TensorFlow's checkpoint manager, which writes no commit file."""
    step = tf.Variable(_STEP, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(global_step=step, **items)
    tf.train.CheckpointManager(checkpoint, str(directory), max_to_keep=1).save(_STEP)


def _line(units: int = 1, value: float = 5.0) -> keras.Model:
    model = line_experiment.LineModel()
    model.dense.units = units
    model(keras.Input((2,)))
    model.dense.kernel.assign(tf.fill(model.dense.kernel.shape, value))
    return model


def _optimizer(model: keras.Model) -> keras.optimizers.Optimizer:
    optimizer = keras.optimizers.SGD()
    optimizer.build(model.trainable_variables)
    return optimizer


def _keras2(directory: pathlib.Path, **more: Any) -> None:
    """Write a checkpoint in the layout of a subclassed Keras 2 model and its optimizer."""
    dense = tf.train.Checkpoint(kernel=tf.Variable(tf.ones([2, 1])), bias=tf.Variable([0.0]))
    hyper = {"decay": tf.Variable(0.0), "learning_rate": tf.Variable(0.5)}
    optimizer = tf.train.Checkpoint(iter=tf.Variable(_STEP, dtype=tf.int64), **hyper)
    _save(directory, model=tf.train.Checkpoint(dense=dense, **more), optimizer=optimizer)


def _keras2_with_another_layer(directory: pathlib.Path) -> None:
    _keras2(directory, head=tf.train.Checkpoint(kernel=tf.Variable(tf.ones([2, 1]))))


def _other_model(directory: pathlib.Path) -> None:
    class Other(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.projection = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.projection(x)

    model = Other()
    model(keras.Input((2,)))
    _save(directory, model=model, optimizer=_optimizer(keras.Sequential()))


def _keras2_subclass(directory: pathlib.Path) -> None:
    """Write a checkpoint of a subclassed Keras 2 model, some of whose names Keras 3 uses too."""
    dense = tf.train.Checkpoint(kernel=tf.Variable(tf.ones([2, 1])), bias=tf.Variable([0.0]))
    model = tf.train.Checkpoint(dense=dense)
    _save(directory, model=model, optimizer=tf.train.Checkpoint(iter=tf.Variable(_STEP)))


def _other_shape(directory: pathlib.Path) -> None:
    model = _line(units=3)
    _save(directory, model=model, optimizer=_optimizer(model))


def _files(directory: pathlib.Path) -> dict[str, bytes]:
    paths = directory.rglob("*")
    return {str(p.relative_to(directory)): p.read_bytes() for p in paths if p.is_file()}


def _run(
    mode: str, model_dir: pathlib.Path, build: Callable[..., Any] | None = None, **params: Any
):
    params = line_experiment.line_experiment(**params)
    params.trainer.continuous_eval_timeout = 1
    task = line_experiment.LineTask(params.task)
    if build is not None:
        task.build_model = build
    return train_lib.run_experiment(None, task, mode, params, str(model_dir))


@pytest.mark.sample(4)
@pytest.mark.parametrize("mode", ["train", "eval", "train_and_eval", "continuous_eval"])
@pytest.mark.parametrize(
    ("write", "says"),
    [
        (_keras2_with_another_layer, "(?s)unexpected in the checkpoint.*model/head/kernel"),
        (_other_model, r"`line/dense\w*/kernel` \(model/dense/_kernel: \[2, 1\]\)"),
        (_keras2_subclass, r"`line/dense\w*/kernel`.*If Keras 2 .*keras2_converter"),
        (
            _other_shape,
            r"a different shape.*`line/dense\w*/kernel`.*\[2, 3\] in the checkpoint, \[2, 1\] in",
        ),
    ],
)
def test_model_directory_is_unchanged_if_its_checkpoint_does_not_match_the_model(
    write, says: str, mode: str, tmp_path: pathlib.Path
) -> None:
    write(tmp_path)
    before = _files(tmp_path)
    with pytest.raises(errors.CheckpointError, match=says) as caught:
        _run(mode, tmp_path)
    assert caught.value.exit_code == 5
    after = _files(tmp_path)
    assert after.items() >= before.items()
    added = set(after) - set(before)
    # The failed run may add only its own record files.
    record = ("run.", "log.", "params.yaml", "operative_config", ".lock", "goodput.")
    record += ("checkpoints.chain.jsonl",)
    assert all(name.startswith(record) for name in added)


def test_keras2_checkpoint_can_be_evaluated_and_resumed_and_its_files_are_kept(tmp_path) -> None:
    _keras2(tmp_path)
    before = _files(tmp_path)
    del before["checkpoint"]  # TensorFlow's list of checkpoints, which each save rewrites.
    model, _ = _run("eval", tmp_path)
    np.testing.assert_array_equal(model.dense.kernel, [[1.0], [1.0]])
    for steps in (8, 12, 16):
        trainer = {"train_steps": steps, "max_to_keep": 1}
        _run("train", tmp_path, trainer=trainer)
        assert latest.latest_checkpoint(str(tmp_path)) == str(tmp_path / f"ckpt-{steps}")
        assert _files(tmp_path).items() >= before.items()


class _DistillationTask(line_experiment.LineTask):
    def build_model(self) -> keras.Model:
        dense = keras.layers.Dense(1, kernel_initializer="ones")
        self.teacher = keras.Sequential([keras.Input((2,)), dense])
        self.generator = tf.random.Generator.from_seed(1)
        return super().build_model()


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_keras2_checkpoint_can_be_loaded_by_a_task_with_a_second_model_and_a_random_generator(
    mode: str, tmp_path, caplog
) -> None:
    _keras2(tmp_path)
    params = line_experiment.line_experiment(trainer={"train_steps": _STEP})
    task = _DistillationTask(params.task)
    model, _ = train_lib.run_experiment(None, task, mode, params, str(tmp_path))
    np.testing.assert_array_equal(model.dense.kernel, [[1.0], [1.0]])
    np.testing.assert_array_equal(task.teacher.weights[0], [[1.0], [1.0]])
    assert "They keep their present values: variables (2)" in caplog.text


def test_error_for_a_mismatched_keras2_optimizer_names_the_missing_slot(tmp_path) -> None:
    _keras2(tmp_path)
    momentum = {"optimizer_config": {"optimizer": {"sgd": {"momentum": 0.9}}}}
    with pytest.raises(errors.CheckpointError, match=r"missing.*`SGD/line_dense\w*_momentum`"):
        _run("train", tmp_path, trainer=momentum)
    _run("eval", tmp_path, trainer=momentum)


@pytest.mark.parametrize("layers", [2, 4])
def test_evaluating_a_model_with_more_or_fewer_layers_than_its_checkpoint_raises(
    layers, tmp_path
) -> None:
    def build(count: int = layers) -> keras.Model:
        dense = [keras.layers.Dense(2, name=f"dense{i}") for i in range(count)]
        return keras.Sequential([keras.Input((2,)), *dense])

    _save(tmp_path, model=build(3))
    (tmp_path / "params.yaml").write_text("task: {}\n")
    with pytest.raises(
        errors.CheckpointError, match=r"lists of a different length|/dense3/kernel"
    ) as caught:
        _run("eval", tmp_path, build)
    assert f"--config_file={tmp_path / 'params.yaml'} " in str(caught.value)


def test_checkpoint_without_an_optimizer_can_be_evaluated_but_not_resumed(tmp_path) -> None:
    _save(tmp_path, model=_line())
    model, _ = _run("eval", tmp_path)
    np.testing.assert_array_equal(model.dense.kernel, [[5.0], [5.0]])
    with pytest.raises(errors.CheckpointError, match="optimizer/_variables/0"):
        _run("train", tmp_path)


@pytest.mark.parametrize("optimizer", ["none", "plain"])
def test_evaluating_averaged_weights_that_the_checkpoint_lacks_raises(
    optimizer: str, tmp_path
) -> None:
    model = _line()
    adam = keras.optimizers.Adam()
    adam.build(model.trainable_variables)
    _save(tmp_path, model=model, **({"optimizer": adam} if optimizer == "plain" else {}))
    with pytest.raises(errors.CheckpointError, match="optimizer/inner_optimizer/_variables/0"):
        _run("eval", tmp_path, trainer=_EMA)


def test_training_resumes_from_a_checkpoint_without_the_counters_of_the_trainer(tmp_path) -> None:
    model = _line()
    hidden = model_state.hidden_items(model)
    _save(tmp_path, model=model, optimizer=_optimizer(model), **hidden)
    # No step is left to train, so this run only restores the weights.
    restored, _ = _run("train", tmp_path, trainer={"train_steps": _STEP})
    np.testing.assert_array_equal(restored.dense.kernel, [[5.0], [5.0]])
    trained, _ = _run("train", tmp_path)
    assert (tmp_path / "ckpt-8.index").exists()
    assert (trained.dense.kernel.numpy() != 5.0).all()


def test_checkpoint_without_random_state_can_be_evaluated_but_not_resumed(tmp_path) -> None:
    model = _line()
    _save(tmp_path, model=model, optimizer=_optimizer(model))
    dropout = {"dropout_rate": 0.5}
    _run("eval", tmp_path, task=dropout)
    with pytest.raises(errors.CheckpointError, match="random_state/0"):
        _run("train", tmp_path, task=dropout)


def test_tracked_attributes_of_trainer_and_task_are_saved_only_once(make_trainer) -> None:
    class Trainer(base_trainer.Trainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.same_model = self.model
            self.counts = {"seen": [tf.Variable(0)], "names": ["a"]}
            self.metric = keras.metrics.Mean()
            self.task.teacher = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])

    trainer = make_trainer(line_experiment.line_experiment(), Trainer)
    checkpoint_state.add_attributes(trainer.checkpoint, trainer)
    children = tf.train.TrackableView.children
    top = children(trainer.checkpoint)
    assert set(children(top["trainer_attributes"])) == {"counts"}
    assert set(children(top["task_attributes"])) == {"teacher"}


def test_error_for_an_unbuilt_optimizer_says_how_to_build_it(make_trainer) -> None:
    trainer = make_trainer(line_experiment.line_experiment())
    trainer.task.second_optimizer = keras.optimizers.Adam()
    advice = r"in `build_model`: `self\.second_optimizer = optimizer_factory\.prepare_optimizer"
    with pytest.raises(errors.ConfigValueError, match=advice):
        checkpoint_state.add_attributes(trainer.checkpoint, trainer)


def test_second_optimizer_of_a_task_may_be_built_after_the_trainer_was_created(tmp_path) -> None:
    class Trainer(base_trainer.Trainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.second = keras.optimizers.Adam()

    params = line_experiment.line_experiment()
    task = line_experiment.LineTask(params.task)
    trainer = trainer_factory.create_trainer(params, task, True, False, trainer_cls=Trainer)
    optimizer_factory.prepare_optimizer(trainer.second, trainer.model)
    train_lib.run_experiment(None, task, "train", params, str(tmp_path), trainer=trainer)
    names = [name for name, _ in tf.train.list_variables(str(tmp_path / "ckpt-8"))]
    assert any(name.startswith("trainer_attributes/second/") for name in names)


def test_trainer_without_tracked_attributes_adds_nothing_to_the_checkpoint(make_trainer) -> None:
    trainer = make_trainer(line_experiment.line_experiment(trainer=_EMA))
    before = set(tf.train.TrackableView.children(trainer.checkpoint))
    checkpoint_state.add_attributes(trainer.checkpoint, trainer)
    assert set(tf.train.TrackableView.children(trainer.checkpoint)) == before


def test_init_checkpoint_may_be_a_keras2_checkpoint(tmp_path) -> None:
    _keras2(tmp_path / "old")
    before = _files(tmp_path / "old")
    task = {"init_checkpoint": str(tmp_path / "old")}
    model, _ = _run("eval", tmp_path / "new", task=task)
    np.testing.assert_array_equal(model.dense.kernel, [[1.0], [1.0]])
    assert _files(tmp_path / "old") == before


def test_checkpoint_without_a_new_task_attribute_can_be_resumed(tmp_path) -> None:
    class Task(line_experiment.LineTask):
        def build_model(self) -> keras.Model:
            self.box = tf.train.Checkpoint(total=tf.Variable(7.0))
            return super().build_model()

    _run("train", tmp_path, trainer={"train_steps": 4})
    params = line_experiment.line_experiment()
    task = Task(params.task)
    train_lib.run_experiment(None, task, "train", params, str(tmp_path), allow_config_change=True)
    assert float(task.box.total) == 7.0


def test_run_description_contains_optimizer_batch_size_versions_and_config_checksum(
    experiment, make_trainer
):
    configs = [experiment(), experiment(trainer={"train_steps": 16})]
    current = [configs[0]]
    describe = checkpoint_state.RunDescription(
        make_trainer(configs[0]), tf.distribute.get_strategy(), lambda: current[0]
    )
    first = describe()
    assert first["optimizer"]["class"].startswith("SGD")
    assert (first["global_batch_size"], first["num_replicas"]) == (8, 1)
    assert first["versions"]["tensorflow"] == tf.__version__
    assert describe() is first
    current[0] = configs[1]
    assert describe()["config_sha256"] != first["config_sha256"]


def test_resumed_keras2_optimizer_uses_the_hyperparameter_that_the_user_has_changed(
    tmp_path,
) -> None:
    optimizers: list[keras.optimizers.Optimizer] = []

    class Task(line_experiment.LineTask):
        @classmethod
        def create_optimizer(cls, *args: Any, **kwargs: Any) -> keras.optimizers.Optimizer:
            return optimizers[-1]

    for slope, steps in ((3.0, 4), (5.0, 8)):
        params = line_experiment.line_experiment(
            task={"slope": slope}, trainer={"train_steps": steps}
        )
        optimizers.append(keras2.Adam(0.1, beta_1=slope / 10))
        train_lib.run_experiment(
            None, Task(params.task), "train", params, str(tmp_path), allow_config_change=True
        )
        assert float(optimizers[-1].beta_1) == np.float32(slope / 10)


def test_trainer_attributes_set_after_the_first_save_are_added_to_the_checkpoint(
    make_trainer,
) -> None:
    trainer = make_trainer(line_experiment.line_experiment())
    trainer.states = {"first": tf.Variable(0)}
    checkpoint_state.add_attributes(trainer.checkpoint, trainer)
    trainer.states["second"] = tf.Variable(0)
    checkpoint_state.add_attributes(trainer.checkpoint, trainer)
    children = tf.train.TrackableView.children
    attributes = children(children(trainer.checkpoint)["trainer_attributes"])
    assert set(children(attributes["states"])) == {"first", "second"}


class _Totaling(base_trainer.Trainer):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.total = tf.Variable(0)


class _TotalingTask(line_experiment.LineTask):
    def build_model(self) -> keras.Model:
        self.total = tf.Variable(0)
        return super().build_model()


class _TotalingHook(orbit.Hook):
    every_n_steps = 4

    def __init__(self) -> None:
        self.total = tf.Variable(0)

    def after_step(self) -> None:
        for owner in (self, self.trainer, self.trainer.task):
            owner.total.assign_add(1)


def _own_manager(
    trainer: base_trainer.Trainer,
    directory: pathlib.Path,
    manager_cls: type[tf.train.CheckpointManager],
) -> tf.train.CheckpointManager:
    return manager_cls(
        trainer.checkpoint,
        str(directory),
        max_to_keep=1,
        step_counter=trainer.global_step,
        checkpoint_interval=4,
    )


def _train_in_own_loop(
    directory: pathlib.Path,
    steps: int,
    manager_cls: type[tf.train.CheckpointManager] = async_checkpoint_manager.AsyncCheckpointManager,
    trainer_cls: type[_Totaling] = _Totaling,
) -> list[int]:
    params, hook = line_experiment.line_experiment(), _TotalingHook()
    trainer = trainer_factory.create_trainer(
        params, _TotalingTask(params.task), train=True, evaluate=False, trainer_cls=trainer_cls
    )
    orbit.Controller(
        trainer=trainer,
        global_step=trainer.global_step,
        steps_per_loop=4,
        checkpoint_manager=_own_manager(trainer, directory, manager_cls),
        hooks=[hook],
    ).train(steps)
    return [int(owner.total) for owner in (hook, trainer, trainer.task)]


def test_checkpoint_does_not_contain_a_second_task_that_a_hook_refers_to(
    make_trainer, tmp_path
) -> None:
    hook = _TotalingHook()
    hook.other_task = _TotalingTask(line_experiment.line_experiment().task)
    hook.other_task.build_model()
    trainer = make_trainer(line_experiment.line_experiment(), evaluate=False)
    manager = _own_manager(trainer, tmp_path, tf.train.CheckpointManager)
    orbit.Controller(
        trainer=trainer,
        global_step=trainer.global_step,
        steps_per_loop=4,
        checkpoint_manager=manager,
        hooks=[hook],
    )
    children = tf.train.TrackableView.children
    attributes = children(children(trainer.checkpoint)["hook_attributes"])
    assert set(children(attributes["_TotalingHook"])) == {"total"}


def test_attributes_of_trainer_task_and_hooks_are_resumed_in_a_user_written_training_loop(
    tmp_path,
) -> None:
    assert _train_in_own_loop(tmp_path, 4) == [1, 1, 1]
    assert _train_in_own_loop(tmp_path, 8) == [2, 2, 2]


_MANAGERS = [async_checkpoint_manager.AsyncCheckpointManager, tf.train.CheckpointManager]


@pytest.mark.parametrize("manager_cls", _MANAGERS)
def test_user_written_training_loop_refuses_a_checkpoint_that_lacks_a_tracked_attribute(
    manager_cls, tmp_path
) -> None:
    class Summing(_Totaling):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.sum = tf.Variable(0)

    _train_in_own_loop(tmp_path, 4, manager_cls)
    with pytest.raises(errors.CheckpointError, match="trainer_attributes/sum"):
        _train_in_own_loop(tmp_path, 8, manager_cls, Summing)


@pytest.mark.parametrize("manager_cls", _MANAGERS)
def test_user_written_training_loop_restores_an_older_checkpoint_without_tracked_attributes(
    manager_cls, make_trainer, tmp_path
) -> None:
    old = make_trainer(line_experiment.line_experiment(), evaluate=False)
    old.train(tf.constant(4))
    _own_manager(old, tmp_path, manager_cls).save(checkpoint_number=4)
    assert _train_in_own_loop(tmp_path, 8, manager_cls) == [1, 1, 1]
