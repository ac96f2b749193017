import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import nas, orbit
from official_lite.checkpoint import latest
from official_lite.common import errors
from official_lite.config import epochs, parsing
from official_lite.core import base_trainer, train_lib, trainer_factory
from official_lite.core import config_definitions as cfg
from official_lite.modeling.hyperparams import yaml_io
from official_lite.modeling.optimization import ema_optimizer
from official_lite.nas import architecture, one_shot_trainer
from official_lite.run import run_record
from tests import rounding

TRAINERS = ("darts", "gumbel", "proxyless", "enas", "spos")


def _slow_but(*quick):
    """All trainers, of which those named here are tested quickly."""
    return [n if n in quick else pytest.param(n, marks=pytest.mark.slow) for n in TRAINERS]


def _state(trainer):
    optimizers = [*trainer.optimizer.variables, *trainer.arch_optimizer.variables]
    return [v.numpy() for v in [*trainer.model.variables, *trainer.alphas, *optimizers]]


def _run(params, task_cls, model_dir, mode="train", **kwargs):
    return train_lib.run_experiment(
        None, task_cls(params.task), mode, params, str(model_dir), **kwargs
    )


@pytest.mark.parametrize("name", TRAINERS)
def test_names_are_registered(name, experiment) -> None:
    found = trainer_factory.get_trainer_cls(experiment(name))
    assert issubclass(found, nas.OneShotTrainer)


@pytest.mark.parametrize("name", _slow_but("darts"))
def test_search_that_was_interrupted_is_the_one_that_was_not(
    name, experiment, toy_task, make_trainer, tmp_path
) -> None:
    states = []
    for lengths in ([8], [4, 8]):
        model_dir = tmp_path / str(len(lengths))
        for steps in lengths:
            params = experiment(
                name,
                task={"batch_norm": True, "dropout_rate": 0.3},
                trainer={"train_steps": steps, "one_shot": {"gumbel": {"temperature": 0.5}}},
            )
            trainer = make_trainer(params)
            _run(params, toy_task, model_dir, trainer=trainer)
        states.append((_state(trainer), (model_dir / "arch.json").read_text()))
    for whole, resumed in zip(states[0][0], states[1][0], strict=True):
        np.testing.assert_array_equal(whole, resumed)
    assert states[0][1] == states[1][1]


# Keras itself, which saves variables.
@pytest.mark.sample(1)
@pytest.mark.filterwarnings("ignore:__array__ implementation")
@pytest.mark.parametrize("name", _slow_but("proxyless", "spos"))
def test_arch_json_is_what_a_plain_training_takes(name, experiment, toy_task, tmp_path) -> None:
    params = experiment(name, trainer={"train_steps": 4})
    _run(params, toy_task, tmp_path / "search", mode="train_and_eval")
    content = json.loads((tmp_path / "search/arch.json").read_text())
    assert set(content["arch"]) == {"first", "second"}
    assert content["step"] == 4
    assert "mae" in content["metric"]
    # The same experiment, the trainer that searches included, with one override.
    found = experiment(name, task={"arch": str(tmp_path / "search")}, trainer={"train_steps": 4})
    model, _ = _run(found, toy_task, tmp_path / "found")
    sizes = {"tanh": 20, "linear": 16, "zero": 0}
    assert model.count_params() == 5 + sum(sizes[op] for op in content["arch"].values())
    model.save(tmp_path / "found.keras")
    assert not (tmp_path / "found/arch.json").exists()


def test_edited_arch_json_never_changes_a_run(experiment, toy_task, tmp_path) -> None:
    arch, found = tmp_path / "arch.json", tmp_path / "found"
    arch.write_text(json.dumps({"arch": {"first": "tanh", "second": "linear"}}))

    def params(steps=4):
        return experiment(None, task={"arch": str(arch)}, trainer={"train_steps": steps})

    _, before = _run(params(), toy_task, found, mode="train_and_eval", run_post_eval=True)
    recorded = yaml_io.read_yaml(found / "params.yaml")
    assert recorded["task"]["arch"] == {"first": "tanh", "second": "linear"}
    arch.write_text(json.dumps({"arch": {"first": "tanh", "second": "zero"}}))
    for mode, steps in (("train", 8), ("train_and_eval", 4), ("train", 4), ("eval", 4)):
        with pytest.raises(errors.ConfigValueError, match=r"task\.arch\.second: linear -> zero"):
            _run(params(steps), toy_task, found, mode=mode)
    for mode in ("train", "train_and_eval"):
        with pytest.raises(errors.ConfigValueError, match=r"task\.arch\.second: linear -> zero"):
            run_record.is_finished(parsing.read_model_files(params()), mode, str(found))
    own = params()
    own.override(recorded)
    _, after = _run(own, toy_task, found, mode="eval", run_post_eval=True)
    assert after["validation_loss"] == before["validation_loss"]
    arch.write_text(json.dumps({"arch": {"second": "linear", "first": "tanh"}, "step": 9}))
    _run(params(8), toy_task, found)
    assert latest.latest_checkpoint(str(found)).endswith("ckpt-8")


@pytest.mark.parametrize("name", TRAINERS)
def test_epochs_are_those_of_the_data_that_the_weights_read(name, experiment) -> None:
    def steps(**overrides):
        epochs_given = {"train_epochs": 3, "validate_every_epochs": 1}
        trainer = {**epochs_given, **overrides.pop("trainer", {})}
        task = {"train_data": {"num_examples": 64, **overrides.pop("train_data", {})}, **overrides}
        resolved = epochs.resolve(experiment(name, trainer=trainer, task=task)).trainer
        return resolved.train_steps, resolved.validation_interval, resolved.steps_per_epoch

    whole = (24, 8, 8)
    assert steps() == (12, 4, 4)
    assert steps(arch={"first": "tanh", "second": "tanh"}) == whole
    assert steps(trainer={"one_shot": {"arch_data": {"global_batch_size": 8}}}) == whole
    assert steps(train_data={"sharding": False}) == whole


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
def test_epoch_of_a_registered_trainer_is_what_its_weights_read(
    name, config, task, steps, experiment, toy_task, tmp_path
) -> None:
    params = experiment(None, task={"arch": task, "train_data": {"num_examples": 64}})
    optimizer_config = params.trainer.optimizer_config
    trainer = config(name=name, optimizer_config=optimizer_config, train_epochs=1, steps_per_loop=4)
    _run(params.replace(trainer=trainer), toy_task, tmp_path)
    assert latest.latest_checkpoint(str(tmp_path)).endswith(f"ckpt-{steps}")


def test_model_without_choices_is_refused(experiment, toy_task) -> None:
    class Plain(toy_task):
        def build_model(self):
            return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

    params = experiment()
    with pytest.raises(errors.ConfigValueError, match="there is nothing to search"):
        trainer_factory.create_trainer(params, Plain(params.task), train=True, evaluate=False)


def test_class_that_builds_itself_is_searched(experiment, make_trainer) -> None:
    for name in ("darts", "spos"):
        trainer = make_trainer(experiment(name, task={"kind": "class"}))
        trainer.train(tf.constant(2))
        assert set(trainer.export()) == {"first", "second"}


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "name", ["darts", pytest.param("proxyless", marks=pytest.mark.slow), "spos"]
)
def test_all_kinds_of_choices_are_searched_and_found(name, experiment, toy_task, tmp_path) -> None:
    params = experiment(name, task={"kind": "all"}, trainer={"train_steps": 4})
    _run(params, toy_task, tmp_path / "search")
    arch = nas.read_arch(tmp_path / "search")
    assert set(arch) == {"first", "second", "depth", "inputs"}
    assert (arch["depth"] in (0, 1, 2), len(arch["inputs"])) == (True, 2)
    found = experiment(None, task={"kind": "all", "arch": str(tmp_path / "search")})
    model, _ = _run(found, toy_task, tmp_path / "found")
    assert not nas.space_of(model)


@pytest.mark.usefixtures("bfloat16_kernels")
def test_half_precision_is_searched(experiment, make_trainer) -> None:
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    for name in ("darts", "proxyless"):
        darts = {"darts": {"order": "second"}}
        trainer = make_trainer(experiment(name, trainer={"one_shot": darts}))
        assert np.isfinite(float(trainer.train(tf.constant(2))["arch_loss"]))
        assert {alpha.dtype for alpha in trainer.alphas} == {"float32"}


def test_architecture_and_weights_have_an_optimizer_each(experiment, make_trainer) -> None:
    trainer = make_trainer(experiment())
    alphas = {id(alpha) for alpha in trainer.alphas}
    assert len(alphas) == 2
    assert {id(v) for v in trainer.arch_optimizer._trainable_variables} == alphas
    assert not alphas & {id(v) for v in trainer.optimizer._trainable_variables}
    assert not alphas & {id(v) for v in trainer.model.variables}


def test_architecture_moves_first_and_neither_moves_the_other(experiment, make_trainer) -> None:
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


def test_warm_up_leaves_the_architecture_alone(experiment, make_trainer) -> None:
    trainer = make_trainer(experiment(trainer={"one_shot": {"warmup_steps": 3}}))
    start = [alpha.numpy() for alpha in trainer.alphas]
    trainer.train(tf.constant(3))
    np.testing.assert_array_equal([alpha.numpy() for alpha in trainer.alphas], start)
    trainer.train(tf.constant(1))
    assert not np.array_equal([alpha.numpy() for alpha in trainer.alphas], start)


def test_fit_and_export_from_python(experiment, make_trainer) -> None:
    trainer = make_trainer(experiment(trainer={"train_steps": 6}))
    trainer.fit()
    assert int(trainer.global_step.numpy()) == 6
    assert trainer.export() == trainer.export()
    assert np.isclose(sum(trainer.probs()["first"]), 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", _slow_but("enas")[1:])
def test_two_replicas_export_what_one_exports(name, experiment, make_trainer, two_replicas) -> None:
    trainers = []
    for strategy in (None, two_replicas):
        trainer = make_trainer(experiment(name), strategy=strategy)
        with trainer.strategy.scope():
            trainer.train(tf.constant(6))
        trainers.append(trainer)
    one, two = trainers
    for alpha, mirrored in zip(one.alphas, two.alphas, strict=True):
        copies = [copy.numpy() for copy in mirrored.value.values]
        np.testing.assert_array_equal(*copies)
        rounding.assert_close(copies[0], alpha.numpy(), roundings=6 * 8, scale=1.0)
    assert one.export() == two.export()


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("name", "execution"),
    [("darts", "eager"), ("darts", "xla_loop"), ("spos", "eager"), ("spos", "xla")],
)
def test_other_modes_of_execution_learn_the_same(name, execution, experiment, make_trainer) -> None:
    losses = []
    for mode in ("graph", execution):
        trainer = make_trainer(experiment(name, runtime={"execution": mode}))
        losses.append(float(trainer.train(tf.constant(3))["training_loss"]))
    rounding.assert_close(*losses, roundings=3 * 8)


def test_hooks_see_a_search_as_any_training(experiment, toy_task, tmp_path) -> None:
    class Count(orbit.Hook):
        every_n_steps = 2
        steps = 0

        def after_step(self):
            self.steps += 1

    count = Count()
    params = experiment(trainer={"train_steps": 8})
    _run(params, toy_task, tmp_path, hooks=[count])
    assert count.steps == 4
    assert latest.latest_checkpoint(str(tmp_path)).endswith("ckpt-8")


class _Fail(orbit.Hook):
    every_n_steps = 6

    def after_step(self) -> None:
        if self.iter >= 5:
            raise RuntimeError("broken")


def test_file_is_written_at_checkpoints_and_not_by_a_failure(
    experiment, toy_task, tmp_path
) -> None:
    params = experiment("darts")
    with pytest.raises(RuntimeError, match="broken"):
        train_lib.run_experiment(
            None, toy_task(params.task), "train", params, str(tmp_path), hooks=[_Fail()]
        )
    content = json.loads((tmp_path / "arch.json").read_text())
    assert content["step"] in (4, 6)
    assert set(content["arch"]) == {"first", "second"}
    step, probs = architecture.read_history(str(tmp_path))[-1]
    assert (step, probs) == (content["step"], content["probs"])


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
def test_weights_and_moments_off_the_path_come_back(averages: bool) -> None:
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

    # Weights: inner a (2), outer y (2), the head (2).
    for path, expected in {
        (0, 0): [True, True, False, False, True, True],
        (0, 1): [False, False, False, False, True, True],
        (1, 0): [False, False, True, True, True, True],
    }.items():
        step(*map(tf.constant, path))
        assert moved() == expected * (4 if averages else 3)


def test_weights_with_several_users_come_back_only_if_none_was_used(caplog) -> None:
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
