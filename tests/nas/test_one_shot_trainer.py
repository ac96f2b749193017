import contextlib
import dataclasses
import json
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import keras2, nas, orbit
from official_lite.checkpoint import latest
from official_lite.common import errors
from official_lite.config import parsing
from official_lite.core import base_trainer, input_reader, trainer_factory
from official_lite.core import config_definitions as cfg
from official_lite.data import arrays, position
from official_lite.modeling.hyperparams import yaml_io
from official_lite.modeling.optimization import ema_optimizer
from official_lite.nas import architecture, one_shot_trainer
from official_lite.run import run_record
from tests import rounding


def test_resuming_with_an_edited_arch_json_is_refused(experiment, run_toy, tmp_path) -> None:
    arch, found = tmp_path / "arch.json", tmp_path / "found"
    arch.write_text(json.dumps({"arch": {"first": "tanh", "second": "linear"}}))

    def params(steps=4):
        return experiment(None, task={"arch": str(arch)}, trainer={"train_steps": steps})

    _, before = run_toy(params(), found, mode="train_and_eval", run_post_eval=True)
    recorded = yaml_io.read_yaml(found / "params.yaml")
    assert recorded["task"]["arch"] == {"first": "tanh", "second": "linear"}
    arch.write_text(json.dumps({"arch": {"first": "tanh", "second": "zero"}}))
    for mode, steps in (("train", 8), ("train_and_eval", 4), ("train", 4), ("eval", 4)):
        with pytest.raises(errors.ConfigValueError, match=r"task\.arch\.second: linear -> zero"):
            run_toy(params(steps), found, mode=mode)
    for mode in ("train", "train_and_eval"):
        with pytest.raises(errors.ConfigValueError, match=r"task\.arch\.second: linear -> zero"):
            run_record.is_finished(parsing.read_model_files(params()), mode, str(found))
    own = params()
    own.override(recorded)
    _, after = run_toy(own, found, mode="eval", run_post_eval=True)
    assert after["validation_loss"] == before["validation_loss"]
    arch.write_text(json.dumps({"arch": {"second": "linear", "first": "tanh"}, "step": 9}))
    run_toy(params(8), found)
    assert latest.latest_checkpoint(str(found)).endswith("ckpt-8")


def test_resuming_a_search_with_its_options_in_another_order_is_refused(
    experiment, run_toy, toy_task, make_ops, monkeypatch, tmp_path
) -> None:
    def search(steps):
        run_toy(experiment(trainer={"train_steps": steps}), tmp_path)

    def older_items(trainer):
        items = original(trainer)
        del items["alpha_options"]
        return items

    original = nas.DartsTrainer._checkpoint_items
    with monkeypatch.context() as earlier_version:
        earlier_version.setattr(nas.DartsTrainer, "_checkpoint_items", older_items)
        search(4)
    search(8)
    options = make_ops()
    reordered = {name: options[name] for name in ("tanh", "zero", "linear")}
    module = sys.modules[toy_task.__module__]
    monkeypatch.setattr(module, "operations", lambda l2=0.0: reordered)
    with pytest.raises(errors.CheckpointError, match=r"`first: linear` would be .* `first: zero`"):
        search(12)


@trainer_factory.register_trainer_cls("tests_own_search")
class OwnSearch(nas.DartsTrainer):
    pass


@trainer_factory.register_trainer_cls("tests_no_search")
class NoSearch(base_trainer.Trainer):
    pass


@pytest.mark.parametrize(
    ("name", "config", "task", "steps"),
    [
        ("tests_own_search", cfg.TrainerConfig, "", 4),
        ("tests_no_search", nas.OneShotTrainerConfig, {"first": "tanh", "second": "tanh"}, 8),
    ],
)
def test_registered_trainer_counts_epochs_by_the_data_that_train_its_weights(
    name, config, task, steps, experiment, run_toy, tmp_path
) -> None:
    params = experiment(None, task={"arch": task, "train_data": {"num_examples": 64}})
    optimizer_config = params.trainer.optimizer_config
    trainer = config(name=name, optimizer_config=optimizer_config, train_epochs=1, steps_per_loop=4)
    run_toy(params.replace(trainer=trainer), tmp_path)
    assert latest.latest_checkpoint(str(tmp_path)).endswith(f"ckpt-{steps}")


def test_search_of_a_model_without_choices_is_refused(experiment, toy_task) -> None:
    class Plain(toy_task):
        def build_model(self):
            return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

    params = experiment()
    with pytest.raises(errors.ConfigValueError, match="there is nothing to search"):
        trainer_factory.create_trainer(params, Plain(params.task), train=True, evaluate=False)


@pytest.mark.usefixtures("bfloat16_kernels")
def test_search_in_bfloat16_keeps_float32_alphas_and_finite_losses(
    experiment, make_trainer
) -> None:
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    for name in ("darts", "proxyless"):
        darts = {"darts": {"order": "second"}}
        trainer = make_trainer(experiment(name, trainer={"one_shot": darts}))
        assert np.isfinite(float(trainer.train(tf.constant(2))["arch_loss"]))
        assert {alpha.dtype for alpha in trainer.alphas} == {"float32"}


def test_nonfinite_alpha_ends_a_search_with_the_error_for_nonfinite_weights(
    experiment, run_toy, tmp_path
) -> None:
    def spoil(hook):
        hook.controller.trainer.alphas[0].assign([np.nan, 0.0, 0.0])

    hook = orbit.hooks.LambdaHook(after_step=spoil, every_n_steps=3)
    params = experiment("proxyless", trainer={"one_shot": {"warmup_steps": 100}})
    with pytest.raises(errors.DivergedError, match=r"these variables are not: .*first"):
        run_toy(params, tmp_path, hooks=[hook])


def test_each_search_step_updates_first_only_alpha_and_then_only_the_weights(
    experiment, make_trainer
) -> None:
    trainer = make_trainer(experiment(runtime={"run_eagerly": True}))
    seen = []

    def watch(name, part):
        def watched(inputs):
            before = _values(trainer)
            part(inputs)
            after = _values(trainer)
            seen.append((name, [b != a for b, a in zip(before, after, strict=True)]))

        return watched

    trainer._arch_step = watch("arch", trainer._arch_step)
    trainer._weight_step = watch("weights", trainer._weight_step)
    trainer.train(tf.constant(2))
    assert seen == [("arch", [True, False]), ("weights", [False, True])] * 2


def _values(trainer):
    return [
        [v.numpy().tobytes() for v in trainer.alphas],
        [v.numpy().tobytes() for v in trainer.model.variables],
    ]


def test_alpha_is_not_trained_during_the_warmup_steps(experiment, make_trainer) -> None:
    trainer = make_trainer(experiment(trainer={"one_shot": {"warmup_steps": 3}}))
    start = [alpha.numpy() for alpha in trainer.alphas]
    trainer.train(tf.constant(3))
    np.testing.assert_array_equal([alpha.numpy() for alpha in trainer.alphas], start)
    trainer.train(tf.constant(1))
    assert not np.array_equal([alpha.numpy() for alpha in trainer.alphas], start)


class _Fail(orbit.Hook):
    every_n_steps = 6

    def after_step(self) -> None:
        if self.iter >= 5:
            raise RuntimeError("broken")


def test_arch_json_is_written_at_checkpoints_but_not_after_a_failure(
    experiment, run_toy, tmp_path
) -> None:
    params = experiment("darts")
    with pytest.raises(RuntimeError, match="broken"):
        run_toy(params, tmp_path, hooks=[_Fail()])
    content = json.loads((tmp_path / "arch.json").read_text())
    assert content["step"] in (4, 6)
    assert set(content["arch"]) == {"first", "second"}
    step, probs = architecture.read_history(str(tmp_path))[-1]
    assert (step, probs) == (content["step"], content["probs"])


class _BlowUp(orbit.Hook):
    """A hook that changes the first alpha at step 6, and makes a weight NaN at step 7, once."""

    every_n_steps = 1

    def __init__(self):
        self._is_done = False

    def after_step(self):
        if self._is_done:
            return
        if self.controller.step == 6:
            self.trainer.alphas[0].assign([9.0, 0.0, 0.0])
        if self.controller.step == 7:
            self.trainer.model.trainable_variables[-1].assign([np.nan])
            self._is_done = True


def test_history_of_a_recovered_search_has_no_probabilities_of_discarded_steps(
    experiment, run_toy, tmp_path
) -> None:
    params = experiment(trainer={"validation_interval": 6, "recovery_max_trials": 1})
    run_toy(params, tmp_path, mode="train_and_eval", hooks=[_BlowUp()])
    lines = (tmp_path / architecture.HISTORY_FILE).read_text().splitlines()
    probs = {line["step"]: max(line["probs"]["first"]) for line in map(json.loads, lines)}
    assert len(probs) == len(lines)
    assert probs[6] < 0.5


def test_history_of_a_search_that_starts_again_has_no_probabilities_of_discarded_steps(
    experiment, run_toy, tmp_path
) -> None:
    line = architecture.to_history_line(3, {"first": [0.2, 0.3, 0.5]})
    (tmp_path / architecture.HISTORY_FILE).write_text(line + "\n")
    run_toy(experiment(trainer={"train_steps": 4}), tmp_path)
    steps = [step for step, _ in architecture.read_history(str(tmp_path))]
    assert 4 in steps
    assert 3 not in steps


def test_architecture_search_can_use_stochastic_weight_averaging_and_precise_batch_norm(
    experiment, make_trainer, run_toy, tmp_path
) -> None:
    def keep(hook):
        kept.append([weight.numpy() for weight in hook.trainer.model.weights])

    kept = []
    params = experiment("darts", task={"batch_norm": True})
    hooks = [
        orbit.hooks.StochasticWeightAveraging(4, every_n_steps=2, recalibration_steps=2),
        orbit.hooks.PreciseBatchNorm(num_steps=2),
        orbit.hooks.LambdaHook(after_step=keep, every_n_steps=2),
    ]
    model, _ = run_toy(params, tmp_path, mode="train_and_eval", hooks=hooks)
    trainer = make_trainer(params)
    trainer.checkpoint.restore(str(tmp_path / "swa" / "ckpt-8")).expect_partial()
    weights = zip(model.weights, trainer.model.weights, *kept, strict=True)
    for weight, average, _, *averaged in weights:
        if weight.trainable:
            np.testing.assert_array_equal(weight.numpy(), averaged[-1])
            rounding.assert_close(average.numpy(), np.mean(averaged, axis=0), roundings=4)
        else:
            # The last evaluation replaced the moving statistics of step 8 by the exact ones. Those
            # of the averaged weights are different.
            assert not np.array_equal(weight.numpy(), averaged[-1])
            assert not np.array_equal(weight.numpy(), average.numpy())


@pytest.mark.parametrize(
    "divided", [{"grad_accum_steps": 2}, {"fit_memory": True}, {"virtual_replicas": 2}]
)
def test_search_trainer_trains_a_fixed_architecture_like_the_default_trainer(
    divided, experiment, make_trainer
) -> None:
    weights = []
    for name in ("darts", None):
        arch = {"first": "tanh", "second": "linear"}
        trainer = make_trainer(experiment(name, task={"arch": arch}, trainer=divided))
        trainer.train(tf.constant(2))
        weights.append([weight.numpy() for weight in trainer.model.trainable_variables])
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(errors.ConfigValueError, match="overrides `train_step`"):
        make_trainer(experiment("darts", trainer=divided))


def _model_and_optimizer(averages=False):
    inputs = keras.Input((2,))
    inner = nas.LayerChoice(
        {"a": keras.layers.Dense(2), "b": keras.layers.Identity()}, label="inner"
    )
    outer = nas.LayerChoice(
        {"x": keras.Sequential([inner]), "y": keras.layers.Dense(2)}, label="outer"
    )
    model = keras.Model(inputs, keras.layers.Dense(1)(outer(inputs)))
    optimizer = keras.optimizers.Adam(0.1)
    if averages:
        optimizer = ema_optimizer.ExponentialMovingAverage(optimizer)
    optimizer.build(model.trainable_variables)
    return model, optimizer


@pytest.mark.parametrize("averages", [False, True])
def test_frozen_unsampled_paths_keep_their_weights_optimizer_moments_and_moving_averages(
    averages: bool,
) -> None:
    model, optimizer = _model_and_optimizer(averages)
    idle = one_shot_trainer.IdlePaths(model, optimizer)
    adam = optimizer.inner_optimizer if averages else optimizer
    everything = [*model.trainable_variables, *adam._momentums, *adam._velocities]
    everything += optimizer.averages if averages else []
    before = [v.numpy() for v in everything]

    @tf.function
    def step(outer, inner):
        kept = idle.keep()
        for variable in everything:
            variable.assign(variable + 1.0)
        idle.put_back(kept, {"outer": outer, "inner": inner})

    def moved():
        changed = [
            not np.array_equal(v.numpy(), b) for v, b in zip(everything, before, strict=True)
        ]
        for variable, value in zip(everything, before, strict=True):
            variable.assign(value)
        return changed

    # Option `a` of `inner`, option `y` of `outer` and the head have two weights each.
    for path, expected in {
        (0, 0): [True, True, False, False, True, True],
        (0, 1): [False, False, False, False, True, True],
        (1, 0): [False, False, True, True, True, True],
    }.items():
        step(*map(tf.constant, path))
        assert moved() == expected * (4 if averages else 3)


def _adafactor(weights):
    optimizer = keras.optimizers.Adafactor(0.1)
    optimizer.build(weights)
    return optimizer, [*optimizer._r, *optimizer._c, *optimizer._v]


def _keras2_adam(weights):
    optimizer = keras2.optimizers.Adam(0.1)
    optimizer.build(weights)
    return optimizer, [optimizer.get_slot(w.value, name) for name in ("m", "v") for w in weights]


def _with_tensorflow_variables(weights):
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(weights)
    moments = [tf.Variable(tf.zeros(weight.shape)) for weight in weights]
    vars(optimizer)["moments"] = moments
    return optimizer, moments


@pytest.mark.parametrize("build", [_adafactor, _keras2_adam, _with_tensorflow_variables])
def test_frozen_unsampled_paths_keep_optimizer_slots_of_any_shape_and_kind(build) -> None:
    model, _ = _model_and_optimizer()
    optimizer, slots = build(model.trainable_variables)
    idle = one_shot_trainer.IdlePaths(model, optimizer)
    before = [slot.numpy() for slot in slots]
    kept = idle.keep()
    for variable in [*slots, optimizer.iterations]:
        variable.assign(variable + tf.ones_like(variable))
    idle.put_back(kept, {"outer": tf.constant(0), "inner": tf.constant(0)})
    moved = [not np.array_equal(v.numpy(), b) for v, b in zip(slots, before, strict=True)]
    # Option `a` of `inner`, option `y` of `outer` and the head have two weights each.
    assert moved == [True, True, False, False, True, True] * (len(slots) // 6)
    assert optimizer.iterations.numpy() == 1


def test_weights_shared_between_paths_are_frozen_only_if_the_sampled_path_does_not_use_them(
    caplog,
) -> None:
    shared, outside = keras.layers.Dense(2), keras.layers.Dense(2)
    inputs = keras.Input((2,))
    x = inputs
    for label, layers in {"a": [shared], "b": [shared, outside]}.items():
        options = dict(enumerate([*layers, keras.layers.Identity()]))
        x = nas.LayerChoice({str(k): v for k, v in options.items()}, label=label)(x)
    model = keras.Model(inputs, outside(x))
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)
    idle = one_shot_trainer.IdlePaths(model, optimizer)
    (warning,) = caplog.messages
    assert f"`{outside.kernel.path}`, `{outside.bias.path}`" in warning
    for a, b in [(0, 0), (0, 2), (1, 0), (1, 2)]:
        kept = idle.keep()
        before = [layer.kernel.numpy() for layer in (shared, outside)]
        for weight in model.trainable_variables:
            weight.assign(weight + 1.0)
        idle.put_back(kept, {"a": tf.constant(a), "b": tf.constant(b)})
        moved = [
            not np.array_equal(layer.kernel.numpy(), value)
            for layer, value in zip((shared, outside), before, strict=True)
        ]
        assert moved == [0 in (a, b), True], (a, b)


def _build_inputs(params, input_context=None) -> tf.data.Dataset:
    return arrays.from_arrays(
        np.arange(20),
        params.global_batch_size,
        shuffle=True,
        repeat=True,
        input_context=input_context,
    )


def _config(**fields):
    return cfg.DataConfig(global_batch_size=4, is_training=True, **fields)


def _take(dataset, count):
    return [{k: v.tolist() for k, v in b.items()} for b in dataset.take(count).as_numpy_iterator()]


def test_train_and_val_streams_split_all_examples_without_overlap() -> None:
    batches = _take(one_shot_trainer.build_streams(_build_inputs)(_config()), 5)
    train, val = ({x for batch in batches for x in batch[name]} for name in ("train", "val"))
    assert not train & val
    assert train | val == set(range(20))
    assert len(batches[0]["train"]) == len(batches[0]["val"]) == 4


def _records(directory, num_files, num_rows=20):
    for number in range(num_files):
        records = [str(row) for row in range(max(num_rows, num_files)) if row % num_files == number]
        with tf.io.TFRecordWriter(str(directory / f"{number}.tfrecord")) as writer:
            for record in records:
                writer.write(record)
        (directory / f"{number}.csv").write_text("\n".join(["x", *records]))

    def read_records(params, input_context=None):
        params = params.replace(input_path=str(directory / "*.tfrecord"), shuffle_buffer_size=5)
        reader = input_reader.InputReader(params, parser_fn=tf.strings.to_number)
        return reader.read(input_context)

    def read_rows(params, input_context=None):
        params = params.replace(
            input_path=str(directory / "*.csv"), source="csv", shuffle_buffer_size=5
        )
        return input_reader.InputReader(params, parser_fn=lambda row: row["x"]).read(input_context)

    return {"records": read_records, "rows": read_rows}


@pytest.mark.sample(2)
@pytest.mark.parametrize("pipelines", [1, 2])
@pytest.mark.parametrize(
    ("kind", "num_files"),
    [("arrays", 1), ("records", 1), ("records", 5), ("records", 70), ("rows", 5), ("rows", 70)],
)
def test_search_data_are_split_into_the_same_two_halves_in_every_epoch_and_after_a_resume(
    kind, num_files, pipelines, tmp_path
) -> None:
    build_inputs = {"arrays": _build_inputs, **_records(tmp_path, num_files)}[kind]
    build = one_shot_trainer.build_streams(build_inputs)

    def batches_from(batch, pipeline):
        context = tf.distribute.InputContext(pipelines, pipeline, pipelines)
        with position.begin_at(batch, seed=7) as begin:
            dataset = build(_config().replace(global_batch_size=pipelines), context)
        assert begin.is_kept
        return _take(dataset, 3 * num_examples - batch)

    num_examples = max(20, num_files)
    found = []
    for pipeline in range(pipelines):
        batches = batches_from(0, pipeline)
        assert batches[33:] == batches_from(33, pipeline)
        found += batches
    train, val = ({x for batch in found for x in batch[name]} for name in ("train", "val"))
    assert not train & val
    assert train | val == set(range(num_examples))


@pytest.mark.parametrize("kind", ["records", "rows"])
def test_search_data_are_split_into_the_same_two_halves_with_any_number_of_workers(
    kind, tmp_path
) -> None:
    num_rows = 128
    build = one_shot_trainer.build_streams(_records(tmp_path, 32, num_rows)[kind])

    def examples(pipelines, pipeline):
        context = tf.distribute.InputContext(pipelines, pipeline, pipelines)
        with position.begin_at(0, seed=7):
            dataset = build(_config().replace(global_batch_size=pipelines), context)
        batches = _take(dataset, num_rows // 2)
        return [{x for batch in batches for x in batch[name]} for name in ("train", "val")]

    train, val = examples(1, 0)
    assert len(train) == len(val) == num_rows // 2
    # A half has 16 files, so 17 pipelines divide its records.
    for pipelines, pipeline in ((2, 0), (2, 1), (17, 16)):
        own_train, own_val = examples(pipelines, pipeline)
        assert own_train <= train
        assert own_val <= val


@pytest.mark.parametrize("resumes", [False, True])
@pytest.mark.parametrize("num_files", [5, 20])
@pytest.mark.parametrize("kind", ["records", "rows"])
def test_both_data_streams_of_a_search_read_all_files_if_sharding_is_off(
    kind, num_files, resumes, tmp_path
) -> None:
    build = one_shot_trainer.build_streams(_records(tmp_path, num_files)[kind])
    begins = position.begin_at(0, seed=7) if resumes else contextlib.nullcontext()
    with begins:
        dataset = build(_config().replace(global_batch_size=1, sharding=False))
    # Take three epochs, because the buffer of a shuffle may hold back examples of the first one.
    batches = _take(dataset, 60)
    for name in ("train", "val"):
        assert {x for batch in batches for x in batch[name]} == set(range(20))


@pytest.mark.sample(2)
@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize("names", [("train", "val"), ("train",)])
def test_resumed_train_and_val_streams_continue_with_the_next_batch(replicas, names) -> None:
    context = tf.distribute.InputContext(1, 0, replicas)
    build = one_shot_trainer.build_streams(_build_inputs, names=names)

    def batches_from(batch):
        with position.begin_at(batch, seed=7) as begin:
            dataset = build(_config(), context)
        assert begin.is_kept
        return list(dataset.take(3 * replicas).as_numpy_iterator())

    whole, rest = batches_from(0), batches_from(2)
    np.testing.assert_equal(whole[2 * replicas :], rest[:replicas])


def test_neither_data_stream_of_a_search_resumes_if_one_of_them_cannot_resume() -> None:
    def build_inputs(params, input_context=None):
        if params.seed:
            return _build_inputs(params, input_context)
        return tf.data.Dataset.range(8).batch(4)

    build = one_shot_trainer.build_streams(build_inputs, arch_data=_config(seed=None))
    with position.begin_at(3, seed=7) as begin:
        build(_config(seed=5))
    assert not begin.is_kept


def test_weights_train_on_all_training_data_if_arch_data_is_separate() -> None:
    arch_data = dataclasses.replace(_config(), global_batch_size=2)
    batches = _take(
        one_shot_trainer.build_streams(_build_inputs, arch_data=arch_data)(_config()), 10
    )
    assert {x for batch in batches for x in batch["train"]} == set(range(20))
    assert {len(batch["val"]) for batch in batches} == {2}
