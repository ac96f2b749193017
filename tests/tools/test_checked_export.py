"""Tests that exports in all formats match the model."""

import os
import shutil
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import pipeline
from official_lite.common import errors
from official_lite.core import base_task, exp_factory, task_factory
from official_lite.tools import checked_export, loaded_run
from tests import rounding

# Keras triggers these warnings, as do the libraries that load the exports.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def test_exports_in_all_formats_compute_the_outputs_of_the_model(read_run, trained, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("ai_edge_litert")
    params, directory = read_run(trained).params, str(tmp_path)
    exports = checked_export.export_checkpoint(
        params,
        trained,
        os.path.join(trained, "ckpt-4"),
        ["tf_saved_model", "keras", "litert", "onnx"],
        directory=directory,
    )
    assert sorted(os.listdir(tmp_path)) == ["4", "4.keras", "4.onnx", "4.tflite"]
    # The longest sum is over the seven inputs of the dense layer.
    tolerance = rounding.tolerance(roundings=7)
    for export in exports:
        assert export.size > 500
        assert export.max_output > 0.1
        assert export.is_within(tolerance)
        assert not export.is_within(-tolerance)


def test_export_that_cannot_be_loaded_back_raises(read_run, trained, tmp_path, monkeypatch):
    def load_exported(path, format):
        raise TypeError("unknown class")

    monkeypatch.setattr(checked_export, "load_exported", load_exported)
    with pytest.raises(errors.OfficialLiteError, match=r"loaded back as keras: .*unknown class"):
        checked_export.export_checkpoint(
            read_run(trained).params,
            trained,
            os.path.join(trained, "ckpt-4"),
            ["keras"],
            directory=str(tmp_path),
        )


def test_export_tolerance_is_relative_to_the_largest_output_if_it_exceeds_one():
    def export(difference, output):
        return checked_export.Export(
            format="onnx",
            path="",
            checkpoint="",
            size=1,
            max_difference=difference,
            max_output=output,
        )

    assert export(0.01, 1000.0).is_within(1e-4)
    assert not export(0.01, 0.001).is_within(1e-4)
    assert not export(float("nan"), 1.0).is_within(1e-4)


NAN, INF = float("nan"), float("inf")


DIFFERENCES = [
    ([1.0, 2.0], [1.0, 2.5], 0.5),
    ([NAN, INF], [NAN, INF], 0.0),
    ([NAN, 1.0], [1.0, 1.0], INF),
    ([1.0], [INF], INF),
    ([[1.0]], [1.0], INF),
    ([], [], 0.0),
    ([3], [5], 2.0),
    ([b"a"], [b"a"], 0.0),
    ([b"a"], [b"b"], INF),
]


def test_output_difference_is_infinite_unless_shapes_and_non_finite_values_match() -> None:
    for expected, found, difference in DIFFERENCES:
        arrays = [np.asarray(each) for each in (expected, found)]
        assert checked_export.largest_difference(arrays[:1], arrays[1:]) == difference
        assert checked_export.largest_difference(arrays[:1], []) == INF


def test_inputs_of_an_exported_model_are_matched_by_name_or_position():
    given = {"ids": 1, "mask": 2}
    assert checked_export._by_name(["mask", "ids"], given) == given
    assert checked_export._by_name(["mask"], given) == {"mask": 2}
    assert checked_export._by_name(["ids_1", "mask_1"], given) == {"ids_1": 1, "mask_1": 2}
    with pytest.raises(errors.ConfigValueError, match="expects words"):
        checked_export._by_name(["words"], given)


@pytest.mark.parametrize(
    ("format", "package"), [("litert", "ai_edge_litert"), ("onnx", "onnxruntime")]
)
def test_error_for_loading_an_export_without_its_runtime_package_names_the_package(
    monkeypatch, format, package
):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"{package}.interpreter", raising=False)
    with pytest.raises(errors.ConfigValueError, match=package):
        checked_export.load_exported("none", format)


def test_exported_outputs_are_evaluated_with_the_metrics_of_the_task(read_run, trained) -> None:
    with loaded_run.built(read_run(trained).params) as (ctx, _):
        loaded_run.load_weights(ctx, loaded_run.find_checkpoint(trained))
        model, inputs = ctx.require("model"), loaded_run.real_inputs(ctx)
        own = checked_export.measure_metrics(ctx, inputs)
        outputs = model_outputs(model)
        same = checked_export.measure_metrics(ctx, inputs, outputs)
        other = checked_export.measure_metrics(
            ctx, inputs, lambda given: [0 * each for each in outputs(given)]
        )
    assert same == pytest.approx(own, abs=1e-6)
    # Equal logits for three classes have a cross-entropy of log(3).
    assert other["validation_loss"] == pytest.approx(np.log(3), abs=1e-5)
    assert own["validation_loss"] != other["validation_loss"]


def test_exported_model_is_evaluated_with_the_compiled_metrics_of_the_model(
    read_run, trained, tmp_path
) -> None:
    shutil.copytree(trained, tmp_path / "run")
    # The 48 examples make a batch of 40 and one of 8.
    params = read_run(trained, "--set=task.validation_data.global_batch_size=40").params
    _, expected = pipeline.RunPipeline(params, "eval", str(tmp_path / "run")).run()
    with loaded_run.built(params) as (ctx, _):
        loaded_run.load_weights(ctx, loaded_run.find_checkpoint(trained))
        model, inputs = ctx.require("model"), loaded_run.real_inputs(ctx)
        model.compile(metrics={"logits": "sparse_categorical_accuracy"})
        first, second = (
            checked_export.measure_metrics(ctx, inputs, call)
            for call in (None, model_outputs(model))
        )
    assert first["validation_loss"] == pytest.approx(expected["validation_loss"], rel=1e-5)
    assert 0 < first["logits_sparse_categorical_accuracy"] < 1
    assert second == pytest.approx(first, abs=1e-6)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task.validation_data=null", r"`task\.validation_data` is null"),
        ("task.validation_data.is_training=true", "repeat forever"),
    ],
)
def test_exported_model_is_not_evaluated_on_training_data_or_infinite_data(
    read_run, trained, override, message
) -> None:
    with loaded_run.built(read_run(trained, f"--set={override}").params) as (ctx, _):
        inputs = loaded_run.real_inputs(ctx)
        with pytest.raises(errors.ConfigValueError, match=message):
            checked_export.measure_metrics(ctx, inputs)


def test_export_latency_is_measured_with_a_batch_of_one_example() -> None:
    sizes = []
    inputs = loaded_run.ModelInputs(args=[np.zeros((8, 3), np.float32)], names=["x"])

    def call(given):
        sizes.append(given.arrays()["x"].shape)
        return []

    assert checked_export.measure_latency(call, inputs) > 0
    assert set(sizes) == {(1, 3)}


def model_outputs(model):
    """Return a function that computes the outputs in the order in which exports return them."""
    call = type(model).call

    def outputs(given):
        result = call(model, *given.args, training=False)
        return [np.asarray(each) for each in keras.tree.flatten(result)]

    return outputs


def test_model_with_a_list_of_inputs_is_exported_and_measured_with_batches_of_named_features(
    tmp_path,
):
    @task_factory.register_experiment("tests/named_features")
    class TowersTask(base_task.Task):
        def build_model(self):
            user, item = keras.Input((2,), name="user"), keras.Input((), dtype="int32", name="item")
            rows = keras.layers.Embedding(5, 2)(item)
            return keras.Model([user, item], keras.layers.Dense(1)(user * rows))

        def build_inputs(self, params, input_context=None):
            # Keras pairs the features with the inputs by name and ignores the others.
            features = {
                "id": np.array([b"a", b"b"]),
                "item": np.array([1, 4], np.int32),
                "user": np.array([[0.25, 0.5], [0.75, -1.5]], np.float32),
            }
            dataset = tf.data.Dataset.from_tensor_slices((features, np.ones([2, 1], np.float32)))
            return dataset.repeat().batch(2) if params.is_training else dataset.batch(2)

        def build_losses(self, labels, model_outputs, aux_losses=None):
            return tf.reduce_mean(tf.square(model_outputs - labels))

    params = exp_factory.get_exp_config("tests/named_features")
    params.override(
        {
            "trainer": {
                "train_steps": 1,
                "checkpoint_interval": 1,
                "optimizer_config": {
                    "optimizer": {"type": "sgd"},
                    "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.1}},
                },
            },
            "runtime": {"distribution_strategy": "off"},
        },
        is_strict=True,
    )
    run_dir = str(tmp_path / "run")
    pipeline.RunPipeline(params, "train", run_dir).run()
    original, *exports = checked_export.export_checkpoint(
        params,
        run_dir,
        loaded_run.find_checkpoint(run_dir),
        ["keras", "tf_saved_model"],
        directory=str(tmp_path),
        measure=True,
    )
    for export in exports:
        assert export.is_within(rounding.tolerance(roundings=4))
        assert export.metrics == pytest.approx(original.metrics, abs=1e-6)
