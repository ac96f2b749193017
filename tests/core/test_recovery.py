"""Tests of recovery: what triggers it, which checkpoint it restores, which batches it skips."""

import json
import math
import os
import signal
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import orbit, telemetry
from official_lite.common import errors, preemption
from official_lite.core import actions as recovery
from official_lite.core import base_trainer, train_lib
from official_lite.data import position
from official_lite.modeling import distributed_gradients, embedding_lookups
from official_lite.modeling.optimization import optimizer_factory
from tests.line_experiment import LineTask

pytestmark = pytest.mark.usefixtures("short_data_search")


def _condition(trials: int, bound: float = 100.0, begin: int = 0) -> recovery.RecoveryCondition:
    step = tf.Variable(5, dtype=tf.int64)
    return recovery.RecoveryCondition(step, bound, begin, trials)


@pytest.mark.parametrize("loss", [math.nan, -math.inf, 101.0])
def test_loss_blow_up_triggers_recovery_until_the_trials_are_exhausted(loss) -> None:
    condition = _condition(trials=2)
    assert condition({"training_loss": loss})
    assert condition({"training_loss": tf.constant(loss)})
    with pytest.raises(errors.DivergedError, match=r"blew up 3 times"):
        condition({"training_loss": loss})


def test_loss_upper_bound_has_no_effect_before_recovery_begin_steps() -> None:
    assert not _condition(trials=0, begin=6)({"training_loss": 1e9})


def test_loss_blow_up_on_one_replica_triggers_recovery() -> None:
    assert _condition(trials=1)({"training_loss": np.array([1.0, 101.0])})
    assert _condition(trials=1)({"training_loss": np.array([math.nan, 1.0])})
    assert not _condition(trials=1)({"training_loss": np.array([1.0, 2.0])})


def test_steps_repeated_to_find_the_step_with_the_bad_loss_log_no_values(
    experiment, make_trainer, tmp_path
) -> None:
    class Loud(LineTask):
        def build_losses(self, labels, model_outputs, aux_losses=None):
            telemetry.put_scalar("seen", 1.0)
            return super().build_losses(labels, model_outputs, aux_losses)

    trainer = make_trainer(experiment(), task_cls=Loud, evaluate=False)
    manager = tf.train.CheckpointManager(trainer.checkpoint, str(tmp_path), max_to_keep=1)
    manager.save()
    with telemetry.EventStorage() as trainer.event_storage:
        trainer.train(tf.constant(4))
        assert trainer.event_storage.take().scalars == {"seen": 1.0}
        action = recovery.RecoveryAction(
            manager, trainer, is_bad=lambda _: int(trainer.global_step) == 3
        )
        assert action.find_bad_step().step == 3
        assert trainer.event_storage.take() == telemetry.Events()
        assert len(trainer.event_storage.history("seen").values()) == 1


def test_metric_history_after_a_recovery_lacks_the_values_of_discarded_steps(
    experiment, make_task, tmp_path
) -> None:
    params = experiment(trainer=RECOVERING)
    task = _poison(make_task(params), losses=[6])
    hook = orbit.hooks.LambdaHook()
    train_lib.run_experiment(None, task, "train", params, str(tmp_path), hooks=[hook])
    history = hook.controller.storage.history("training_loss")
    assert [step for _, step in history.values()] == [4, 8, 12]
    assert math.isfinite(history.global_mean())


def test_recovery_without_a_checkpoint_raises_diverged_error(tmp_path) -> None:
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(v=tf.Variable(1.0)), str(tmp_path), max_to_keep=1
    )
    with pytest.raises(errors.DivergedError, match="blew up before its first checkpoint"):
        recovery.RecoveryAction(manager)({})


def _poison(task, losses=(), gradients=(), left_out=range(0)):
    """Replace a task's data with numbered batches; those in `losses` or `gradients` are bad.

    Batches whose numbers are in `left_out` are never drawn.
    """
    x = tf.random.stateless_normal((8, 2), (1, 2))
    targets = 3.0 * x[:, :1] + 1.0

    def is_one_of(number, numbers):
        return tf.reduce_any(number == tf.constant(list(numbers), tf.int64))

    def batch(number):
        y = targets + tf.cast(number, tf.float32)
        y = tf.where(is_one_of(number, losses), math.nan, y)
        # The gradient of a square root is infinite at 0.
        epsilon = tf.where(is_one_of(number, gradients), 0.0, 1e-12)
        return x, tf.concat([y, tf.fill((8, 1), epsilon)], axis=1)

    def build_inputs(params, input_context=None):
        begin = position.take()
        numbers = tf.data.Dataset.range(begin.batch, 2**60)
        return numbers.map(lambda n: n if n < left_out.start else n + len(left_out)).map(batch)

    def build_losses(labels, model_outputs, aux_losses=None):
        model_outputs = tf.cast(model_outputs, tf.float32)
        root = tf.sqrt(labels[0, 1] * (1.0 + tf.reduce_sum(tf.square(model_outputs))))
        return tf.reduce_mean(tf.square(model_outputs - labels[:, :1])) + root

    task.build_inputs, task.build_losses = build_inputs, build_losses
    task.build_metrics = lambda training=True: []
    return task


def _run(params, task, model_dir):
    return train_lib.run_experiment(None, task, "train", params, str(model_dir))


def _saved_values(model_dir):
    for index in model_dir.glob("ckpt-*.index"):
        reader = tf.train.load_checkpoint(str(index.with_suffix("")))
        for name, kind in reader.get_variable_to_dtype_map().items():
            if kind.is_floating:
                yield reader.get_tensor(name)


RECOVERING = {"train_steps": 12, "max_to_keep": 9, "recovery_max_trials": 1}
EVALUATING = {**RECOVERING, "steps_per_loop": 2, "validation_interval": 2}


@pytest.mark.sample(1)
@pytest.mark.parametrize("bad", [{"losses": [6]}, {"gradients": [6]}])
def test_recovered_run_equals_a_run_that_never_draws_the_skipped_batches(
    experiment, make_task, tmp_path, bad
) -> None:
    params = experiment(trainer=RECOVERING)
    model, _ = _run(params, _poison(make_task(params), **bad), tmp_path / "poisoned")
    # A bad gradient shows in the weights after its step, or in the loss of the next step.
    first_good = 7
    left_out = range(4, first_good)
    other, _ = _run(params, _poison(make_task(params), left_out=left_out), tmp_path / "other")
    np.testing.assert_array_equal(model.dense.kernel, other.dense.kernel)
    assert all(np.isfinite(value).all() for value in _saved_values(tmp_path / "poisoned"))
    record = json.loads((tmp_path / "poisoned" / recovery.RECORD_NAME).read_text())
    assert [blow_up["step"] for blow_up in record["blow_ups"]] == [8]


def test_recovery_skips_both_batches_of_a_bad_step_that_draws_two_batches(
    experiment, make_trainer, tmp_path, caplog
) -> None:
    class Two(base_trainer.Trainer):
        def train_step(self, iterator):
            self.run_step(self._look, self.next_train_inputs(iterator))
            super().train_step(iterator)

        def _look(self, inputs):
            self.model.dense.bias.assign_add(0.01 * tf.reduce_mean(inputs[1], axis=0)[:1])

    def train(name, **bad):
        params = experiment(trainer=RECOVERING)
        task = _poison(LineTask(params.task), **bad)
        trainer = make_trainer(params, Two, lambda _: task, evaluate=False)
        return train_lib.run_experiment(
            None, task, "train", params, str(tmp_path / name), trainer=trainer
        )[0]

    # Step 7 draws the batches 12 and 13; the checkpoint of step 4 follows batch 7.
    model, other = train("poisoned", losses=[13]), train("other", left_out=range(8, 14))
    assert "step 7, which drew batches 12 to 13" in caplog.text
    np.testing.assert_array_equal(model.dense.kernel, other.dense.kernel)
    np.testing.assert_array_equal(model.dense.bias, other.dense.bias)


def _kill_after_recovery(params, task, model_dir):
    """Train until recovery has returned to step 4 and has skipped the bad batches."""
    begun = []

    def kill(hook):
        begun.append(hook.controller.step)
        if len(begun) == 2:
            raise ConnectionError

    killing = orbit.hooks.LambdaHook(before_step=kill, every_n_steps=8)
    arguments = (None, task, "train", params, str(model_dir))
    with pytest.raises(ConnectionError):
        train_lib.run_experiment(*arguments, hooks=[killing])


def _num_skipped(path):
    reader = tf.train.load_checkpoint(str(path))
    return int(reader.get_tensor("skipped_batches/.ATTRIBUTES/VARIABLE_VALUE"))


def test_run_killed_after_a_recovery_skips_the_bad_batches_when_it_resumes(
    experiment, make_task, tmp_path
) -> None:
    params = experiment(trainer=RECOVERING)
    task = _poison(make_task(params), losses=[6])
    _kill_after_recovery(params, task, tmp_path / "killed")
    model, _ = _run(params, _poison(make_task(params), losses=[6]), tmp_path / "killed")
    other, _ = _run(params, _poison(make_task(params), left_out=range(4, 7)), tmp_path / "other")
    np.testing.assert_array_equal(model.dense.kernel, other.dense.kernel)


# Recovery skips the batches 4 to 6, whose examples are in 2 batches of 16 or in 6 batches of 4.
@pytest.mark.parametrize(("batch_size", "num_bad"), [(16, 2), (4, 6)])
def test_run_killed_after_a_recovery_skips_the_bad_examples_when_it_resumes_with_another_batch_size(
    experiment, make_task, tmp_path, batch_size, num_bad
) -> None:
    params = experiment(trainer=RECOVERING)
    _kill_after_recovery(params, _poison(make_task(params), losses=[6]), tmp_path)
    resized = params.replace(
        task={"train_data": {"global_batch_size": batch_size}}, trainer={"train_steps": 5}
    )
    task = _poison(make_task(resized))
    train_lib.run_experiment(None, task, "train", resized, str(tmp_path), allow_config_change=True)
    assert _num_skipped(tmp_path / "ckpt-5") == num_bad


def test_batches_to_skip_that_an_older_version_recorded_in_steps_are_still_skipped(
    experiment, make_trainer, tmp_path
) -> None:
    skip = {"step": 8, "what": "The training loss is nan", "checkpoint": 0, "next_batch": 3}
    (tmp_path / recovery.RECORD_NAME).write_text(json.dumps({"blow_ups": [skip]}))
    trainer = make_trainer(experiment(trainer={"grad_accum_steps": 2}), evaluate=False)
    manager = tf.train.CheckpointManager(trainer.checkpoint, str(tmp_path), max_to_keep=1)
    record = recovery.BlowUpRecord(str(tmp_path))
    recovery.RecoveryAction(manager, trainer, record=record).before_train()
    assert trainer.num_batches_skipped == 2 * 3


@pytest.mark.slow
def test_recovery_also_skips_a_second_bad_batch_before_the_next_checkpoint(
    experiment, make_task, tmp_path
) -> None:
    params = experiment(trainer={**RECOVERING, "recovery_max_trials": 2})
    _run(params, _poison(make_task(params), losses=[5, 8]), tmp_path)
    # Recovery skips batches 4 and 5, and then batches 6 to 8.
    assert _num_skipped(tmp_path / "ckpt-12") == 5


def test_recovery_skips_only_the_bad_batches_after_the_number_of_micro_batches_has_changed(
    experiment, make_task, tmp_path
) -> None:
    def run(last_step: int, micro_batches: int) -> int:
        params = experiment(
            trainer={
                **RECOVERING,
                "train_steps": last_step,
                "recovery_max_trials": 2,
                "grad_accum_steps": micro_batches,
            }
        )
        task = _poison(make_task(params), losses=[6, 35])
        train_lib.run_experiment(
            None, task, "train", params, str(tmp_path), allow_config_change=True
        )
        return _num_skipped(tmp_path / f"ckpt-{last_step}")

    # Recovery skips batches 4 to 6.
    assert run(12, micro_batches=1) == 3
    # Step 12 ended with batch 14, which is batch 29 of half the size; recovery skips 30 to 35.
    assert run(16, micro_batches=2) == 6 + 6


def test_nonfinite_weights_from_the_step_before_a_checkpoint_are_not_saved(
    experiment, make_task, tmp_path
) -> None:
    params = experiment(trainer=RECOVERING)
    _run(params, _poison(make_task(params), gradients=[7]), tmp_path)
    saved = list(_saved_values(tmp_path))
    assert saved
    assert all(np.isfinite(value).all() for value in saved)


def test_error_after_a_failed_recovery_names_the_bad_step_and_batch(
    experiment, make_task, tmp_path
) -> None:
    params = experiment(trainer=RECOVERING)
    task = _poison(make_task(params), losses=range(5, 50))
    # The first blow-up is at step 6 with batch 5; after recovery, step 5 draws batch 6.
    with pytest.raises(errors.DivergedError, match="step 5, which drew batch 6"):
        _run(params, task, tmp_path)
    with pytest.raises(errors.DivergedError, match=r"blew up 3 times"):
        _run(params, _poison(make_task(params), losses=range(5, 50)), tmp_path)
    assert all(np.isfinite(value).all() for value in _saved_values(tmp_path))


def test_recovery_skips_no_batch_if_the_loss_blow_up_does_not_recur(
    experiment, make_task, tmp_path
) -> None:
    params = experiment(trainer=RECOVERING)
    plain, _ = _run(params, _poison(make_task(params)), tmp_path / "plain")
    task = _poison(make_task(params))
    seen = []

    def spoil_once(output):
        seen.append(output)
        if len(seen) == 2:
            output["training_loss"] = math.nan

    model, _ = train_lib.run_experiment(
        None, task, "train", params, str(tmp_path / "spoilt"), train_actions=[spoil_once]
    )
    np.testing.assert_array_equal(model.dense.kernel, plain.dense.kernel)
    # The report at step 8 is repeated.
    assert len(seen) == 4


def test_training_proceeds_past_a_blow_up_that_occurs_in_two_attempts_but_in_no_single_step(
    experiment, make_task, tmp_path
) -> None:
    # Without this, a blow-up that only whole intervals show would use up `recovery_max_trials`.
    params = experiment(trainer={**RECOVERING, "recovery_max_trials": 3})
    plain, _ = _run(params, _poison(make_task(params)), tmp_path / "plain")
    spoilt = []

    def spoil(output):
        step = hook.controller.step
        if step == 8:
            spoilt.append(step)
            output["training_loss"] = math.nan

    hook = orbit.hooks.LambdaHook()
    arguments = (None, _poison(make_task(params)), "train", params, str(tmp_path / "spoilt"))
    model, _ = train_lib.run_experiment(*arguments, train_actions=[spoil], hooks=[hook])
    assert len(spoilt) == 2
    np.testing.assert_array_equal(model.dense.kernel, plain.dense.kernel)
    assert (tmp_path / "spoilt" / "ckpt-12.index").exists()


def test_loss_blow_ups_are_counted_across_restarts(tmp_path) -> None:
    step = tf.Variable(5, dtype=tf.int64)
    bad = {"training_loss": math.nan}
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(step=step), str(tmp_path), 1)
    manager.save()
    for _ in range(2):
        condition = recovery.RecoveryCondition(step, 100.0, 0, 2, model_dir=str(tmp_path))
        # This action does not share the record of the condition.
        action = orbit.actions.ConditionalAction(condition, recovery.RecoveryAction(manager))
        action(bad)
        action({"training_loss": 1.0})
    condition = recovery.RecoveryCondition(step, 100.0, 0, 2, model_dir=str(tmp_path))
    with pytest.raises(errors.DivergedError, match=r"blew up 3 times.*recovery\.json"):
        condition(bad)
    record = json.loads((tmp_path / recovery.RECORD_NAME).read_text())
    assert [blow_up["step"] for blow_up in record["blow_ups"]] == [5, 5, 5]


def test_unreadable_recovery_record_resets_the_count_of_blow_ups(tmp_path) -> None:
    (tmp_path / recovery.RECORD_NAME).write_text("{")
    step = tf.Variable(5, dtype=tf.int64)
    condition = recovery.RecoveryCondition(step, 100.0, 0, 1, model_dir=str(tmp_path))
    assert condition({"training_loss": math.nan})


def test_divergence_error_names_the_last_step_at_which_nothing_had_blown_up() -> None:
    step = tf.Variable(5, dtype=tf.int64)
    condition = recovery.RecoveryCondition(step, 100.0, 0, 0)
    assert not condition({"training_loss": 1.0})
    step.assign(9)
    with pytest.raises(errors.DivergedError, match=r"at step 9.*check at step 5 found no"):
        condition({"training_loss": math.nan})


@pytest.mark.slow
@pytest.mark.usefixtures("float16_kernels")
def test_loss_scale_halved_by_a_float16_overflow_is_restored_on_resume(
    experiment, make_task, tmp_path
) -> None:
    def train(name, steps, gradients):
        params = experiment(
            trainer={"train_steps": steps}, runtime={"mixed_precision_dtype": "float16"}
        )
        model, _ = _run(params, _poison(make_task(params), gradients=gradients), tmp_path / name)
        reader = tf.train.load_checkpoint(str(tmp_path / name / f"ckpt-{steps}"))
        names = [n for n in reader.get_variable_to_shape_map() if n.startswith("optimizer")]
        return model.dense.kernel.numpy(), {n: reader.get_tensor(n) for n in names}

    _, plain = train("plain", 12, [])
    kernel, state = train("unbroken", 12, [6])
    train("broken", 8, [6])
    resumed_kernel, resumed_state = train("broken", 12, [6])
    np.testing.assert_array_equal(kernel, resumed_kernel)
    assert state == resumed_state
    changed = {name for name in plain if plain[name] != state[name]}
    (scale,) = (name for name in changed if "dynamic_scale" in name)
    assert state[scale] == plain[scale] / 2


class _Plain(orbit.AbstractTrainer):
    """A plain Orbit trainer whose loss is NaN the first time that it reaches step 8."""

    strategy = property(lambda self: tf.distribute.get_strategy())

    def __init__(self) -> None:
        super().__init__()
        self.global_step = orbit.utils.create_global_step()
        self.checkpoint = tf.train.Checkpoint(global_step=self.global_step)
        self.restored: list[int] = []

    def train(self, num_steps):
        self.global_step.assign_add(tf.cast(num_steps, tf.int64))
        is_bad = int(self.global_step) == 8 and not self.restored
        return {"training_loss": math.nan if is_bad else 1.0}

    def after_restore(self) -> None:
        self.restored.append(int(self.global_step))


def test_recovery_calls_the_after_restore_method_of_a_trainer_that_only_extends_orbit(
    experiment, tmp_path
) -> None:
    trainer = _Plain()
    manager = tf.train.CheckpointManager(
        trainer.checkpoint,
        str(tmp_path),
        max_to_keep=1,
        step_counter=trainer.global_step,
        checkpoint_interval=4,
    )
    actions = recovery.get_train_actions(
        experiment(trainer=RECOVERING), trainer, str(tmp_path), manager
    )
    orbit.Controller(
        trainer=trainer,
        global_step=trainer.global_step,
        steps_per_loop=4,
        checkpoint_manager=manager,
        train_actions=actions,
    ).train(12)
    assert (int(trainer.global_step), trainer.restored) == (12, [4])


class Masked(keras.layers.Layer):
    """A layer with two weights that are infinite before training, as causal masks are."""

    def build(self, shape):
        minus = keras.initializers.Constant(-math.inf)
        plus = keras.initializers.Constant(math.inf)
        self.mask = self.add_weight(name="mask", shape=(2,), initializer=minus, trainable=False)
        self.lowest = self.add_weight(name="lowest", shape=(), initializer=plus, trainable=False)

    def call(self, x, training=False):
        if training:
            self.lowest.assign(tf.minimum(self.lowest, tf.reduce_min(x)))
        return tf.where(tf.math.is_finite(self.mask), 0.0, x)


class MaskedTask(LineTask):
    def build_model(self):
        return keras.Sequential([keras.Input((2,)), Masked(), keras.layers.Dense(1)])


@pytest.mark.parametrize("value", [None, math.nan])
def test_initially_infinite_weight_may_stay_infinite_but_not_become_nan(
    experiment, tmp_path, value
) -> None:
    def spoil(hook):
        if value is not None:
            hook.controller.trainer.model.layers[0].mask.assign([-math.inf, value])

    params = experiment()
    hook = orbit.hooks.LambdaHook(before_step=spoil)
    run = train_lib.run_experiment
    arguments = (None, MaskedTask(params.task), "train", params, str(tmp_path))
    if value is None:
        run(*arguments, hooks=[hook])
        return
    with pytest.raises(errors.DivergedError, match=r"these variables are not: .*mask"):
        run(*arguments, hooks=[hook])


def test_divergence_error_for_large_labels_names_the_labels_and_loss_upper_bound(
    experiment, tmp_path
) -> None:
    params = experiment(task={"slope": 1e5})
    with pytest.raises(errors.DivergedError) as caught:
        train_lib.run_experiment(None, LineTask(params.task), "train", params, str(tmp_path))
    assert "above `trainer.loss_upper_bound` (1e+06; raise it if" in str(caught.value)
    assert "The training data contain absolute values up to" in str(caught.value)
    assert "in `batch[1]`. Scale the data." in str(caught.value)


def test_error_for_nonfinite_state_names_the_variables(experiment, make_trainer) -> None:
    adam = {"optimizer": {"type": "adam"}}
    trainer = make_trainer(experiment(trainer={"optimizer_config": adam}))
    trainer.train(tf.constant(1))
    state = recovery.NonfiniteCheck(trainer)
    assert state.bad_variables() == []
    trainer.model.dense.bias.assign([math.inf])
    (bad,) = state.bad_variables()
    assert bad.endswith("bias")
    trainer.model.dense.bias.assign([0.0])
    assert state.bad_variables() == []


def test_nonfinite_values_are_found_in_the_optimizer_and_on_every_replica(
    experiment, make_trainer, two_replicas
) -> None:
    with two_replicas.scope():
        trainer = make_trainer(
            experiment(trainer={"optimizer_config": {"optimizer": {"type": "adam"}}})
        )
        trainer.train(tf.constant(1))
        state = recovery.NonfiniteCheck(trainer)
        assert state.bad_variables() == []
        slot = next(v for v in trainer.optimizer.variables if "momentum" in v.path)
        slot.value.values[1].assign(tf.fill(slot.shape, math.nan))
        assert state.bad_variables() == [slot.path]


def test_large_embedding_tables_are_checked_less_often_until_a_value_is_nonfinite(
    monkeypatch,
) -> None:
    monkeypatch.setattr(embedding_lookups, "is_large", lambda variable: True)
    monkeypatch.setattr(recovery, "_NUMBERS_A_STEP", 2)
    monkeypatch.setattr(recovery, "_ROWS_AT_ONCE", 3)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Embedding(10, 2)])
    optimizer = distributed_gradients.make_distributed(keras.optimizers.Adagrad())
    optimizer.build(model.trainable_variables)
    step = tf.Variable(100, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    state = recovery.NonfiniteCheck(
        types.SimpleNamespace(
            model=model, optimizer=optimizer, checkpoint=checkpoint, global_step=step
        )
    )
    assert state.bad_variables() == []
    table = model.trainable_variables[0]
    table.assign(tf.tensor_scatter_nd_update(table.value, [[9, 1]], [math.nan]))
    # The table and its accumulator have 40 numbers; a check may read two numbers per step.
    for at, expected in ((100, []), (119, []), (120, [table.path]), (120, [table.path])):
        step.assign(at)
        assert state.bad_variables() == expected
    table.assign(tf.zeros([10, 2]))
    assert state.bad_variables() == []


class _SecondOptimizerTask(LineTask):
    """A task with a second model, whose weights its own optimizer makes NaN in the seventh step."""

    def build_model(self):
        self.critic = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="critic")])
        self.critic_optimizer = optimizer_factory.prepare_optimizer(
            keras.optimizers.SGD(), self.critic
        )
        return super().build_model()

    def train_step(self, inputs, model, optimizer, metrics=None):
        factor = tf.where(optimizer.iterations.value == 6, math.nan, 0.0)
        weights = self.critic.trainable_variables
        self.critic_optimizer.apply_gradients([(factor * tf.ones(w.shape), w) for w in weights])
        return super().train_step(inputs, model, optimizer, metrics)


def test_nan_in_a_second_model_with_its_own_optimizer_ends_the_run_and_is_not_saved(
    experiment, tmp_path
) -> None:
    params = experiment(trainer={"recovery_max_trials": 0})
    task = _SecondOptimizerTask(params.task)
    with pytest.raises(errors.DivergedError, match=r"these variables are not: .*critic"):
        _run(params, task, tmp_path)
    assert all(np.isfinite(value).all() for value in _saved_values(tmp_path))


class _SilentTrainer(base_trainer.Trainer):
    """A trainer that reports no loss, and whose weights become NaN in the seventh step."""

    def train_step(self, iterator):
        super().train_step(iterator)
        if self.global_step == 7:
            self.model.dense.bias.assign([math.nan])

    def train_loop_end(self):
        logs = super().train_loop_end()
        del logs["training_loss"]
        return logs


def test_run_without_a_reported_training_loss_ends_before_it_saves_nan_weights(
    experiment, make_trainer, tmp_path
) -> None:
    params = experiment(trainer={"recovery_max_trials": 0})
    trainer = make_trainer(params, _SilentTrainer, evaluate=False)
    with pytest.raises(errors.DivergedError, match=r"These variables are not finite: .*dense"):
        train_lib.run_experiment(
            None, trainer.task, "train", params, str(tmp_path), trainer=trainer
        )
    assert all(np.isfinite(value).all() for value in _saved_values(tmp_path))


def test_recovery_finds_the_step_that_made_a_large_embedding_table_nonfinite_between_two_checks(
    experiment, make_task, monkeypatch, tmp_path, caplog
) -> None:
    monkeypatch.setattr(embedding_lookups, "is_large", lambda variable: True)
    # The table has 128 numbers, so it is checked every 4 steps.
    monkeypatch.setattr(recovery, "_NUMBERS_A_STEP", 32)
    params = experiment(trainer=RECOVERING)
    task = _poison(make_task(params))

    def batch(number):
        # No other batch looks up the rows of the bad one, so its loss stays finite.
        ids = tf.cast((8 * number + tf.range(8, dtype=tf.int64)) % 128, tf.int32)
        epsilon = tf.where(number == 6, 0.0, 1e-12)
        return ids[:, tf.newaxis], tf.concat([tf.ones((8, 1)), tf.fill((8, 1), epsilon)], axis=1)

    def build_inputs(params, input_context=None):
        return tf.data.Dataset.range(position.take().batch, 2**60).map(batch)

    def build_model():
        ids = keras.Input((1,), dtype="int32")
        rows = keras.layers.Embedding(128, 1)(ids)
        return keras.Model(ids, keras.layers.Flatten()(rows))

    task.build_inputs, task.build_model = build_inputs, build_model
    _run(params, task, tmp_path)
    assert "The loss blew up at step 7, which drew batch 6" in caplog.text
    assert all(np.isfinite(value).all() for value in _saved_values(tmp_path))
    record = json.loads((tmp_path / recovery.RECORD_NAME).read_text())
    assert [blow_up["step"] for blow_up in record["blow_ups"]] == [8]


# Keras itself triggers this warning with NumPy 2.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_hooks_have_the_state_of_an_undisturbed_run_after_a_recovery_whose_blow_up_does_not_recur(
    experiment, make_task, tmp_path
) -> None:
    def train(name, *actions):
        params = experiment(trainer=EVALUATING)
        stopping = orbit.hooks.EarlyStopping("validation_loss", patience=9)
        # With this `min_delta`, each evaluation after the first one lowers the learning rate.
        plateau = keras.callbacks.ReduceLROnPlateau("val_loss", 0.5, patience=1, min_delta=100.0)
        best = orbit.hooks.BestCheckpoint("validation_loss")
        listed = [stopping, orbit.hooks.KerasCallback(plateau), best]
        arguments = (None, make_task(params), "train_and_eval", params, str(tmp_path / name))
        model, _ = train_lib.run_experiment(*arguments, hooks=listed, train_actions=actions)
        info = json.loads((tmp_path / name / "best_ckpt" / "info.json").read_text())
        return model.dense.kernel.numpy().tolist(), stopping.state_dict(), info

    outputs = []

    def spoil_once(output):
        outputs.append(output)
        if len(outputs) == 4:  # At step 8, after evaluations at steps 2, 4 and 6.
            output["training_loss"] = math.nan

    assert train("recovered", spoil_once) == train("unbroken")


class _SearchIsStopped(base_trainer.Trainer):
    """A trainer that gets SIGTERM when recovery has repeated a step."""

    def train(self, num_steps):
        output = super().train(num_steps)
        if int(num_steps) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return output


@pytest.mark.parametrize("precedes_search", [False, True])
def test_signal_during_the_search_for_a_bad_step_leaves_only_the_checkpoint_from_before_the_search(
    experiment, make_trainer, tmp_path, precedes_search, caplog
) -> None:
    def spoil(output):
        output["training_loss"] = math.nan

    ended = []
    hook = orbit.hooks.LambdaHook(
        # In the middle of an interval, whose report then starts the search.
        after_step=lambda _: os.kill(os.getpid(), signal.SIGTERM),
        after_train=lambda _, success: ended.append(success),
        every_n_steps=2 if precedes_search else 0,
    )
    params = experiment(trainer=RECOVERING)
    cls = base_trainer.Trainer if precedes_search else _SearchIsStopped
    trainer = make_trainer(params, cls, evaluate=False)
    arguments = (None, trainer.task, "train", params, str(tmp_path))
    with preemption.catch_signals(), pytest.raises(errors.PreemptedError):
        train_lib.run_experiment(*arguments, trainer=trainer, train_actions=[spoil], hooks=[hook])
    assert ended == [True]
    assert sorted(path.name for path in tmp_path.glob("ckpt-*.index")) == ["ckpt-0.index"]
    reader = tf.train.load_checkpoint(str(tmp_path / "ckpt-0"))
    assert int(reader.get_tensor("global_step/.ATTRIBUTES/VARIABLE_VALUE")) == 0
    # The search restores the checkpoint when it begins and when the signal ends it.
    assert caplog.text.count("Recovering the model from checkpoint") == 2
    # The resumed run repeats the blow-up, which then counts.
    assert len(recovery.BlowUpRecord(str(tmp_path))) == 0


class _SearchIsKilled(base_trainer.Trainer):
    """A trainer that fails when recovery repeats a step."""

    def train(self, num_steps):
        if int(num_steps) == 1:
            raise ConnectionError
        return super().train(num_steps)


def test_loss_blow_up_is_counted_once_even_if_the_run_is_killed_during_recovery(
    experiment, make_task, make_trainer, tmp_path
) -> None:
    params = experiment(trainer=RECOVERING)
    task = _poison(make_task(params), losses=[6])
    trainer = make_trainer(params, _SearchIsKilled, lambda _: task, evaluate=False)
    with pytest.raises(ConnectionError):
        train_lib.run_experiment(None, task, "train", params, str(tmp_path), trainer=trainer)
    _run(params, _poison(make_task(params), losses=[6]), tmp_path)
    assert len(recovery.BlowUpRecord(str(tmp_path))) == 1


# Keras itself triggers this warning with NumPy 2.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_keras_terminate_on_nan_does_not_stop_a_run_that_has_recovered(
    experiment, make_task, tmp_path
) -> None:
    params = experiment(trainer=RECOVERING)
    task = _poison(make_task(params), losses=[6])
    callback = orbit.hooks.KerasCallback(keras.callbacks.TerminateOnNaN())
    train_lib.run_experiment(None, task, "train", params, str(tmp_path), hooks=[callback])
    assert (tmp_path / "ckpt-12.index").exists()


def test_best_checkpoint_is_kept_if_recovery_fails_and_the_run_ends(
    experiment, make_task, tmp_path
) -> None:
    best = orbit.hooks.BestCheckpoint("validation_loss")

    def spoil(output):
        if best.controller.step == 8:
            output["training_loss"] = math.nan

    params = experiment(trainer=EVALUATING)
    arguments = (None, make_task(params), "train_and_eval", params, str(tmp_path))
    with pytest.raises(errors.DivergedError, match="blew up 2 times"):
        train_lib.run_experiment(*arguments, hooks=[best], train_actions=[spoil])
    # The search returned to step 4; the evaluation at step 6 was the best.
    assert (tmp_path / "best_ckpt" / "best_ckpt-6.index").exists()
