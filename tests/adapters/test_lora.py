"""Adapters by config: what is trained, what is saved, what is refused, and exact resume."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.adapters import configs, lora
from official_lite.checkpoint import latest, safetensors_files
from official_lite.common import errors
from tests.adapters.conftest import ROWS, RowsModel, load_base, rows_experiment, train


def _values(model: keras.Model) -> dict[str, np.ndarray]:
    return {weight.path: weight.numpy() for weight in model.weights}


def _assert_equal(first: keras.Model, second: keras.Model) -> None:
    values, others = _values(first), _values(second)
    assert list(values) == list(others)
    for path, value in values.items():
        np.testing.assert_array_equal(value, others[path], err_msg=path)


def test_only_adapters_change_and_the_base_stays_bit_for_bit(base, run) -> None:
    before, after = _values(load_base(base)), _values(run[1])
    changed = [path for path, value in before.items() if not np.array_equal(value, after[path])]
    assert changed == [
        f"rows/norm/{n}" for n in ("gamma", "beta", "moving_mean", "moving_variance")
    ]
    new = sorted(after.keys() - before.keys())
    assert len(new) == 8
    assert all("/lora_" in path and np.abs(after[path]).max() > 0 for path in new)


def test_checkpoint_holds_adapter_slots_step_and_position_only(run) -> None:
    names = dict(tf.train.list_variables(latest.latest_checkpoint(run[0])))
    assert [7, 6] not in names.values()
    top = {name.partition("/")[0] for name in names}
    assert top == {
        "_CHECKPOINTABLE_OBJECT_GRAPH",
        "adapter",
        "adapter_weights",
        "global_step",
        "optimizer",
        "random_state",
        "save_counter",
        "skipped_batches",
    }


@pytest.mark.parametrize(
    "execution", ["graph", *(pytest.param(m, marks=pytest.mark.slow) for m in ("xla", "xla_loop"))]
)
def test_resumed_run_equals_an_unbroken_one_bit_for_bit(adapted, tmp_path, execution) -> None:
    params = adapted({"trainable": ["head/", "norm/gamma"]}, runtime={"execution": execution})
    whole = train(params, tmp_path / "whole")
    train(params.replace(trainer={"train_steps": 4}), tmp_path / "parts")
    _assert_equal(whole, train(params, tmp_path / "parts"))


def test_two_replicas_train_the_same_adapter_as_one(adapted, tmp_path, two_replicas) -> None:
    # Without dropout, whose masks differ between replicas.
    params = adapted(task={"dropout_rate": 0.0})
    one = train(params, tmp_path / "one")
    two = train(params, tmp_path / "two", two_replicas)
    for path, value in _values(one).items():
        np.testing.assert_allclose(value, _values(two)[path], atol=1e-5, err_msg=path)


def test_changed_base_is_refused(base, adapted, run, tmp_path) -> None:
    other = load_base(base)
    other.head.bias.assign([7.0])
    file = str(tmp_path / "other.safetensors")
    safetensors_files.write(file, [(weight.path, weight.numpy()) for weight in other.weights])
    params = adapted({"alpha": 3.0, "trainable": ["norm/"]}, trainer={"train_steps": 12})
    params.task.init_checkpoint = file
    with pytest.raises(errors.CheckpointError, match="trained on another base"):
        train(params, run[0])


def test_adapters_without_a_base_are_refused(adapted, tmp_path) -> None:
    params = adapted()
    params.task.init_checkpoint = ""
    with pytest.raises(errors.ConfigValueError, match=r"task.init_checkpoint. is not"):
        train(params, tmp_path)


def test_adapters_and_freeze_are_refused() -> None:
    with pytest.raises(errors.ConfigValueError, match="already freezes all weights"):
        rows_experiment(task={"adapters": {}}, trainer={"freeze": ["head"]}).validate()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"include": ["blok"]}, r"matches the path of no `Dense`.*Did you mean `block_"),
        ({"exclude": ["norm"]}, r"`task.adapters.exclude` has 'norm'"),
        ({"trainable": ["bais"]}, r"matches the path of no weight"),
        ({"trainable": ["."]}, r"leaves no layer with an adapter"),
    ],
)
def test_bad_config_is_refused_with_the_nearest_names(fields: Any, message: str) -> None:
    model = RowsModel()
    model(ROWS)
    with pytest.raises(errors.ConfigValueError, match=message):
        lora.enable(model, configs.AdaptersConfig(**fields))


def test_layers_and_other_weights_are_selected_by_path() -> None:
    model = RowsModel()
    model(ROWS)
    config = configs.AdaptersConfig(
        rank=1, include=["block", "table"], exclude=["block_1"], trainable=["^rows/head/", "norm"]
    )
    lora.enable(model, config)
    assert sorted(weight.path.removeprefix("rows/") for weight in model.trainable_weights) == [
        "block_0/lora_kernel_a",
        "block_0/lora_kernel_b",
        "head/bias",
        "head/kernel",
        "norm/beta",
        "norm/gamma",
        "table/lora_embeddings_a",
        "table/lora_embeddings_b",
    ]


def test_frozen_batch_normalization_does_not_move() -> None:
    model = RowsModel()
    model(ROWS)
    lora.enable(model, configs.AdaptersConfig())
    before = model.norm.moving_mean.numpy()
    model(ROWS, training=True)
    np.testing.assert_array_equal(model.norm.moving_mean.numpy(), before)


def test_merged_model_has_the_variables_of_the_base_and_the_same_outputs(base) -> None:
    model = load_base(base)
    paths = [weight.path for weight in model.weights]
    adapter = lora.enable(model, configs.AdaptersConfig(rank=2, alpha=3.0))
    generator = np.random.default_rng(0)
    for weight in model.trainable_weights:
        weight.assign(generator.normal(size=weight.shape))
    expected = model(ROWS).numpy()
    adapter.merge()
    np.testing.assert_allclose(model(ROWS), expected, rtol=1e-5, atol=1e-5)
    assert [weight.path for weight in model.weights] == paths
    assert not [v for v in tf.train.TrackableView(model).descendants() if "lora" in str(v)]


def test_layer_that_has_an_adapter_already_is_refused() -> None:
    model = RowsModel()
    model(ROWS)
    model.head.enable_lora(1)
    with pytest.raises(errors.ConfigValueError, match="already has a LoRA adapter"):
        lora.enable(model, configs.AdaptersConfig())


def test_constrained_layer_is_refused() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_constraint="NonNeg")])
    with pytest.raises(errors.ConfigValueError, match="incompatible with kernel constraints"):
        lora.enable(model, configs.AdaptersConfig())


def test_adapter_is_no_base_for_another_run(adapted, run, tmp_path) -> None:
    params = adapted()
    params.task.init_checkpoint = run[0]
    with pytest.raises(errors.CheckpointError, match="only the adapter of a model"):
        train(params, tmp_path)
