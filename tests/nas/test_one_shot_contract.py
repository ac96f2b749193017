"""Properties that all one-shot search strategies share."""

import json

import numpy as np
import pytest
import tensorflow as tf

from official_lite import nas
from official_lite.config import epochs
from official_lite.nas import resolution
from tests import rounding

STRATEGIES = ("darts", "gumbel", "proxyless", "enas", "spos")


def strategies(*quick):
    """Parametrize over all strategies; those not in `quick` run only nightly."""
    params = [n if n in quick else pytest.param(n, marks=pytest.mark.slow) for n in STRATEGIES]
    return pytest.mark.parametrize("name", params)


def _state(trainer):
    optimizers = [*trainer.optimizer.variables, *trainer.arch_optimizer.variables]
    return [v.numpy() for v in [*trainer.model.variables, *trainer.alphas, *optimizers]]


@strategies(*STRATEGIES)
def test_search_strategy_trains_and_exports_one_option_per_label(
    name, experiment, make_trainer
) -> None:
    # The subclassed model has no variables before its first call.
    kind = "class" if name in ("darts", "spos") else "functional"
    trainer = make_trainer(experiment(name, task={"kind": kind}, trainer={"train_steps": 4}))
    assert isinstance(trainer, nas.OneShotTrainer)
    before = _state(trainer)
    trainer.fit()
    assert int(trainer.global_step.numpy()) == 4
    assert not all(map(np.array_equal, before, _state(trainer)))
    found = trainer.export()
    assert {label: option in trainer.space[label] for label, option in found.items()} == {
        "first": True,
        "second": True,
    }
    # `export` does not sample, and no draw is active outside a step.
    assert trainer.export() == found
    assert resolution.current_draw() is None
    assert [sum(p) for p in trainer.probs().values()] == pytest.approx(
        [] if name == "spos" else [1.0, 1.0]
    )


@strategies("darts")
def test_resumed_search_ends_in_the_same_state_as_an_uninterrupted_one(
    name, experiment, make_trainer, run_toy, tmp_path
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
            run_toy(params, model_dir, trainer=trainer)
        states.append((_state(trainer), (model_dir / "arch.json").read_text()))
    for whole, resumed in zip(states[0][0], states[1][0], strict=True):
        np.testing.assert_array_equal(whole, resumed)
    assert states[0][1] == states[1][1]


# Keras itself triggers this warning when it saves variables.
@pytest.mark.filterwarnings("ignore:__array__ implementation")
@strategies("proxyless")
def test_training_builds_the_architecture_found_by_a_search(
    name, experiment, run_toy, tmp_path
) -> None:
    params = experiment(name, trainer={"train_steps": 4})
    run_toy(params, tmp_path / "search", mode="train_and_eval")
    content = json.loads((tmp_path / "search/arch.json").read_text())
    assert set(content["arch"]) == {"first", "second"}
    assert content["step"] == 4
    assert "mae" in content["metric"]
    # This is the same experiment, including the search trainer, with one override.
    found = experiment(name, task={"arch": str(tmp_path / "search")}, trainer={"train_steps": 4})
    model, _ = run_toy(found, tmp_path / "found")
    sizes = {"tanh": 20, "linear": 16, "zero": 0}
    assert model.count_params() == 5 + sum(sizes[op] for op in content["arch"].values())
    model.save(tmp_path / "found.keras")
    assert not (tmp_path / "found/arch.json").exists()


@strategies("spos")
def test_search_chooses_layers_inputs_and_depths(name, experiment, run_toy, tmp_path) -> None:
    params = experiment(name, task={"kind": "all"}, trainer={"train_steps": 4})
    run_toy(params, tmp_path / "search")
    arch = nas.read_arch(tmp_path / "search")
    assert set(arch) == {"first", "second", "depth", "inputs"}
    assert (arch["depth"] in (0, 1, 2), len(arch["inputs"])) == (True, 2)
    found = experiment(None, task={"kind": "all", "arch": str(tmp_path / "search")})
    model, _ = run_toy(found, tmp_path / "found")
    assert not nas.space_of(model)


@strategies("darts")
def test_two_replicas_find_the_same_architecture_as_one_replica(
    name, experiment, make_trainer, two_replicas
) -> None:
    trainers, losses = [], []
    for strategy in (None, two_replicas):
        trainer = make_trainer(experiment(name), strategy=strategy)
        with trainer.strategy.scope():
            losses.append(float(trainer.train(tf.constant(6))["training_loss"]))
        trainers.append(trainer)
    one, two = trainers
    if name == "darts":
        rounding.assert_close(losses[1], losses[0], roundings=6 * 8)
    for alpha, mirrored in zip(one.alphas, two.alphas, strict=True):
        copies = [copy.numpy() for copy in mirrored.value.values]
        np.testing.assert_array_equal(*copies)
        rounding.assert_close(copies[0], alpha.numpy(), roundings=6 * 8, scale=1.0)
    assert one.export() == two.export()


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "execution"),
    [("darts", "eager"), ("darts", "xla_loop"), ("spos", "eager"), ("spos", "xla")],
)
def test_search_has_the_same_training_loss_in_all_execution_modes(
    name, execution, experiment, make_trainer
) -> None:
    losses = []
    for mode in ("graph", execution):
        trainer = make_trainer(experiment(name, runtime={"execution": mode}))
        losses.append(float(trainer.train(tf.constant(3))["training_loss"]))
    rounding.assert_close(*losses, roundings=3 * 8)


@strategies(*STRATEGIES)
def test_search_epochs_count_only_the_data_that_train_the_weights(name, experiment) -> None:
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
