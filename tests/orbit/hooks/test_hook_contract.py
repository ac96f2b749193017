"""Hooks do not change training, are restored when it resumes, and refuse bad arguments."""

import gc
import threading
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import orbit
from official_lite.checkpoint import async_checkpoint_manager
from official_lite.common import errors
from official_lite.core import fit_memory
from official_lite.orbit import hooks
from official_lite.orbit.hooks import hook as hook_module

# Keras itself triggers this warning with NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

HOOKS = {
    hooks.ActionHook: lambda: hooks.ActionHook(lambda output: None),
    hooks.BestCheckpoint: lambda: hooks.BestCheckpoint("validation_loss"),
    hooks.EarlyStopping: lambda: hooks.EarlyStopping("validation_loss", patience=100),
    hooks.ExportModel: lambda: hooks.ExportModel(),
    hooks.GradientNorm: lambda: hooks.GradientNorm(),
    hooks.GraphSummary: lambda: hooks.GraphSummary(),
    hooks.InputWait: lambda: hooks.InputWait(threshold=1.0, every_n_steps=2),
    hooks.IterationTimer: lambda: hooks.IterationTimer(every_n_steps=2),
    hooks.KerasCallback: lambda: hooks.KerasCallback("EarlyStopping", patience=100),
    hooks.LambdaHook: lambda: hooks.LambdaHook(after_step=lambda hook: None, every_n_steps=3),
    hooks.LearningRateLogger: lambda: hooks.LearningRateLogger(every_n_steps=4),
    hooks.MemoryStats: lambda: hooks.MemoryStats(every_n_steps=4),
    hooks.NonFinite: lambda: hooks.NonFinite(every_n_steps=4),
    hooks.PeriodicCheckpoint: lambda: hooks.PeriodicCheckpoint(5),
    hooks.PreciseBatchNorm: lambda: hooks.PreciseBatchNorm(num_steps=2),
    hooks.Profiler: lambda: hooks.Profiler(start_step=5, num_steps=2),
    hooks.StallWarning: lambda: hooks.StallWarning(),
    hooks.StochasticWeightAveraging: lambda: hooks.StochasticWeightAveraging(
        start_step=2, every_n_steps=2, recalibration_steps=2
    ),
    hooks.WeightNorms: lambda: hooks.WeightNorms(every_n_steps=4),
}


def test_hook_contract_covers_every_exported_hook():
    assert {cls.__name__ for cls in HOOKS} == {*hooks.__all__} - {"Hook", "GraphHook"}


@pytest.fixture
def make(make_controller, make_task_trainer, points_task, tmp_path):
    class Task(points_task):
        def layers(self):
            return [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5, seed=1)]

    def build(listed, directory, strategy=None):
        strategy = strategy or tf.distribute.get_strategy()
        with strategy.scope():
            trainer = make_task_trainer(Task)
        manager = async_checkpoint_manager.AsyncCheckpointManager(
            trainer.checkpoint,
            str(tmp_path / directory),
            max_to_keep=None,
            step_counter=trainer.global_step,
            checkpoint_interval=4,
        )
        return make_controller(
            trainer,
            hooks=listed,
            strategy=strategy,
            checkpoint_manager=manager,
            steps_per_loop=4,
            steps_per_epoch=4,
        )

    return build


def _states(listed):
    return {name: hook.state_dict() for name, hook in hook_module.hooks_by_name(listed).items()}


@pytest.mark.parametrize("is_distributed", [False, True])
def test_hooks_do_not_change_training_and_resume_with_their_saved_states(
    make, two_replicas, recording_writer, tmp_path, is_distributed
):
    strategy = two_replicas if is_distributed else None
    listed = [build() for build in HOOKS.values()]
    ends = []
    for name, used in (("plain", []), ("run", listed)):
        controller = make(used, name, strategy)
        controller.train_and_evaluate(8, eval_interval=4)
        ends.append([w.numpy() for w in controller.trainer.model.trainable_variables])
    for one, other in zip(*ends, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not [thread for thread in threading.enumerate() if thread.name == "stall_warning"]

    logged = {name for record in recording_writer.records for name in record.values}
    assert logged >= {
        "examples_per_second",
        "gradient_norm",
        "input_wait_share",
        "learning_rate",
        "memory/rss_mib",
        "swa/validation_loss",
        "weight_norm/global",
    }
    run = tmp_path / "run"
    for pattern in (
        "best_ckpt/*.index",
        "ckpt-5.index",
        "export/8.keras",
        "graph/events*",
        "profile/plugins/profile/*/*.xplane.pb",
        "swa/ckpt-8.index",
    ):
        assert list(run.glob(pattern)), pattern

    resumed = [build() for build in HOOKS.values()]
    controller = make(resumed, "run", strategy)
    assert controller.step == 8
    packed = [hook_module.pack(_states(states)) for states in (listed, resumed)]
    before, after = map(hook_module.unpack, packed)
    for name, state in before.items():
        # Some values are reported after the last checkpoint.
        for each in (state, after[name]):
            each.pop("train_logs", None)
        np.testing.assert_equal(after[name], state)
    controller.train_and_evaluate(12, eval_interval=4)
    assert controller.step == 12


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: hooks.ActionHook(print, when="reports"), "`report`"),
        (lambda: hooks.ActionHook(3), "int"),
        (lambda: hooks.EarlyStopping("loss", patience=0), "`patience`"),
        (lambda: hooks.EarlyStopping("loss", patience=1, min_delta=-1.0), "`min_delta`"),
        (lambda: hooks.EarlyStopping("loss", 1, direction="maximise"), "`maximize`"),
        (lambda: hooks.ExportModel(format="kears"), "`keras`"),
        (lambda: hooks.KerasCallback("CSVLoger", filename="a"), "`CSVLogger`"),
        (lambda: hooks.KerasCallback("CSVLogger", file_name="a"), "`filename`"),
        (lambda: hooks.KerasCallback("CSVLogger"), "can't be created"),
        (lambda: hooks.KerasCallback("json:dumps", x=1), "json:dumps"),
        (lambda: hooks.KerasCallback(threading.Event()), "Event"),
        (lambda: hooks.LambdaHook(after_train=3), "`after_train`"),
        (lambda: hooks.LambdaHook(after_train="json:dump_s"), "`dumps`"),
        (lambda: hooks.PeriodicCheckpoint(0), "at least 1"),
        (lambda: hooks.PreciseBatchNorm(0), "`num_steps`"),
        (lambda: hooks.Profiler(num_steps=0), "0 steps"),
        (lambda: hooks.Profiler(start_step=-1), "-1"),
        (lambda: hooks.Profiler(at_steps=[1, 5], num_steps=5), r"\[1, 5\]"),
        (lambda: hooks.StochasticWeightAveraging(4, every_n_steps=0), "`every_n_steps`"),
    ],
)
def test_invalid_hook_argument_is_named_in_the_error_when_the_hook_is_created(build, named):
    with pytest.raises(errors.ConfigError, match=named):
        build()


@pytest.mark.parametrize(
    ("build", "kind", "named"),
    [
        (lambda: hooks.BestCheckpoint("accuracy"), "plain", "`checkpoint_manager`"),
        (lambda: hooks.PeriodicCheckpoint(10), "plain", "`checkpoint_manager`"),
        (lambda: hooks.ExportModel(), "plain", "a Keras model"),
        (lambda: hooks.ExportModel(), "keras", "`model_dir`"),
        (lambda: hooks.Profiler(), "plain", "`model_dir`"),
        (lambda: hooks.LearningRateLogger(), "plain", "`optimizer`"),
        (lambda: hooks.WeightNorms(), "plain", "`model`"),
        (lambda: hooks.WeightNorms("net/dense/kernal"), "keras", "`net/dense/kernel`"),
        (lambda: hooks.KerasCallback("TerminateOnNaN"), "plain", "a Keras model"),
        (lambda: hooks.PreciseBatchNorm(), "keras", "`task`"),
        (lambda: hooks.PreciseBatchNorm(), "task", "Remove the hook"),
        (lambda: hooks.GradientNorm(), "plain", "GradientNorm"),
        (lambda: hooks.GradientNorm(pattern="net/top/kernal"), "task", "`net/top/kernel`"),
        (lambda: hooks.StochasticWeightAveraging(4, 2), "task", "`model_dir`"),
    ],
)
def test_hook_with_an_unmet_requirement_raises_before_the_first_step(
    make_trainer, make_keras_trainer, make_task_trainer, make_controller, build, kind, named
):
    kinds = {"plain": make_trainer, "keras": make_keras_trainer, "task": make_task_trainer}
    trainer = kinds[kind]()
    with pytest.raises(errors.ConfigError, match=named):
        make_controller(trainer, hooks=[build()]).train(1)
    assert int(trainer.global_step) == 0


def test_hook_written_for_libai_or_detectron2_runs_unchanged(make_trainer, make_controller):
    class InfoHook(orbit.Hook):
        every_n_steps = 1
        seen, ended = (), False

        def after_step(self):
            if self.iter % 100 == 0:
                self.seen += (self.iter,)

        def after_train(self):
            self.ended = True

    trainer, hook = make_trainer(), InfoHook()
    controller = make_controller(trainer, hooks=[hook])
    controller.train(202)
    assert hook.seen == (0, 100, 200)
    assert hook.ended
    assert hook.controller is controller
    assert hook.trainer is trainer


@pytest.mark.parametrize(
    "create",
    [
        hooks.InputWait,
        hooks.NonFinite,
        hooks.PreciseBatchNorm,
        lambda: hooks.KerasCallback(keras.callbacks.Callback()),
    ],
    ids=["input_wait", "non_finite", "precise_batch_norm", "keras_callback"],
)
def test_hook_detached_from_a_trainer_keeps_no_reference_to_it(
    create, make_controller, make_task_trainer, points_task
):
    class Normalizing(points_task):
        def layers(self):
            return [keras.layers.BatchNormalization()]

    def train():
        trainer = make_task_trainer(Normalizing)
        make_controller(trainer, hooks=[hook]).train(2)
        return weakref.ref(trainer), weakref.ref(trainer.model)

    hook = create()
    references = train()
    fit_memory.detach([hook])
    gc.collect()
    assert [reference() for reference in references] == [None, None]
