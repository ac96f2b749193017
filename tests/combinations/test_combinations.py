"""Tests that combined features match a handwritten loop, Keras and an uninterrupted run.

`dimensions.py` defines the features and the refused combinations, `experiment.py` the runs, and
`oracle.py` the handwritten loop. docs/combinations.md is generated from `dimensions.py`.
"""

import itertools
import json
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors
from tests import commands, rounding
from tests.combinations import dimensions, experiment, oracle
from tests.combinations.dimensions import Row

# Keras warns when it writes or reads a weights file, and about the unused optimizer of `compile`.
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer:UserWarning"),
]

_OF_TIME = {"wall_time", "steps_per_second"}

# A stopped run needs two starts. The limit detects a run that never ends.
_MAX_STARTS = 4


def _rows(rows: list[Row]) -> Any:
    return pytest.mark.parametrize("row", [pytest.param(r, id=dimensions.name_of(r)) for r in rows])


@_rows(dimensions.sample())
def test_randomly_combined_features_give_the_results_of_a_reference_implementation(
    row: Row, tmp_path: pathlib.Path, request: Any
) -> None:
    _check(row, tmp_path, request)


@pytest.mark.slow
@_rows(dimensions.complete())
def test_every_pair_of_features_gives_the_reference_results_and_resumes_bit_for_bit(
    row: Row, tmp_path: pathlib.Path, request: Any
) -> None:
    _check(row, tmp_path, request)


@pytest.mark.parametrize(
    "refusal",
    dimensions.REFUSALS,
    ids=lambda one: dimensions.name_of(dimensions.usual_row(**one.values)),
)
def test_unsupported_combination_of_features_raises_before_training(
    refusal: dimensions.Refusal, tmp_path: pathlib.Path
) -> None:
    row = dimensions.usual_row(**refusal.values)
    with pytest.raises(errors.ConfigError, match=re.escape(refusal.words)):
        experiment.run(row, tmp_path)
    assert not list((tmp_path / "run").glob("ckpt-*"))
    assert not _records(tmp_path / "run")


def test_combinations_page_lists_the_tested_feature_combinations() -> None:
    page = commands.ROOT / "docs" / "combinations.md"
    again = "python -m tests.combinations.dimensions > docs/combinations.md"
    assert page.read_text() == dimensions.page(), f"Run `{again}`."


def _check(row: Row, folder: pathlib.Path, request: Any) -> None:
    if row["precision"] != "float32":
        request.getfixturevalue(f"{row['precision']}_kernels")
    recorder = experiment.Recorder()
    model = experiment.run(row | {"stop": "never"}, folder / "unbroken", hooks=[recorder])
    weights = experiment.weights_of(model)
    if row["model"] == "dropout":
        # Neither the oracle nor Keras draws the same random numbers as the framework.
        _compare_with_graph(row, weights, folder)
    else:
        _compare_with_oracle(row, weights, folder / "unbroken", recorder)
    _compare_best(row, folder / "unbroken")
    if _fits_keras(row):
        _compare_with_fit(row, weights, folder / "unbroken")
    if row["stop"] != "never":
        _stop_and_compare(row, weights, folder)


def _compare_with_oracle(
    row: Row, weights: dict[str, Any], folder: pathlib.Path, recorder: experiment.Recorder
) -> None:
    wanted = _oracle(row, folder)
    _compare_weights(row, weights, wanted.weights)
    records = _records(folder / "run")
    for split, reports in (("train", wanted.reports), ("validation", wanted.evaluations)):
        assert [step for step, name in records if name == split] == list(reports)
        for step, report in reports.items():
            vectors = {k: v for k, v in report.items() if isinstance(v, np.ndarray)}
            numbers = {k: v for k, v in report.items() if k not in vectors}
            _compare_values(row, records[step, split], numbers, f"{split} at step {step}")
            if split == "validation":
                for name, vector in vectors.items():
                    scale = max(1.0, np.abs(vector).max())
                    _assert_close(row, recorder.evaluations[step][name], vector, scale=scale)


def _oracle(row: Row, folder: pathlib.Path) -> oracle.Result:
    batches = None
    if row["data"] == "mixed records" or (row["data"] == "records" and row["virtual"]):
        batches = experiment.read_batches(row, folder)
    # Outputs are of the order of 1.
    error = rounding.tolerance(row["precision"], roundings=dimensions.roundings(row))
    return oracle.compute(row, batches, error=error)


def _compare_weights(row: Row, weights: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    assert set(weights) == set(wanted)
    moved = [np.abs(wanted[k] - oracle.initial(k, wanted[k].shape)).max() for k in wanted]
    for name, value in wanted.items():
        try:
            _assert_close(row, weights[name], value, scale=max(moved))
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


def _compare_values(
    row: Row, found: Mapping[str, Any], wanted: Mapping[str, Any], where: str
) -> None:
    assert (where, _named_values(found)) == (where, set(wanted))
    for name, value in wanted.items():
        if value is None:
            continue
        try:
            _assert_close(row, found[name], value, scale=max(1.0, abs(value)))
        except AssertionError as error:
            raise AssertionError(f"{name} of {where}: {error}") from None


def _named_values(record: Mapping[str, Any]) -> set[str]:
    """Return the names of the losses and metrics to compare in a report."""
    ignored = {"step", "split", "learning_rate", *_OF_TIME}
    return {n for n in record if n not in ignored and "best_" not in n and "total_loss" not in n}


def _assert_close(row: Row, found: Any, wanted: Any, *, scale: float) -> None:
    rounding.assert_close(
        found,
        wanted,
        dtype=row["precision"],
        roundings=dimensions.roundings(row),
        scale=scale,
    )


def _compare_with_graph(row: Row, weights: dict[str, Any], folder: pathlib.Path) -> None:
    if row["execution"] == "graph":
        return
    other = row | {"stop": "never", "execution": "graph"}
    model = experiment.run(other, folder / "graph")
    _compare_weights(row, weights, experiment.weights_of(model))


def _compare_best(row: Row, folder: pathlib.Path) -> None:
    """Assert that the saved best state is the state with the best evaluation."""
    name = "validation_loss" if len(oracle.task_names(row)) == 1 else "a/validation_loss"
    values = {step: r for (step, split), r in _records(folder / "run").items() if split != "train"}
    best = max(values, key=lambda step: values[step][name])
    if row["best"] == "callback":
        if row["model"] != "dropout":
            wanted = _oracle(row, folder).evaluated[best]
            model = experiment.ToyTask(experiment.build_config(row, folder).task).build_model()
            model.load_weights(folder / "best.weights.h5")
            _compare_weights(row, experiment.weights_of(model), wanted)
        return
    subdirectory = "best" if row["best"] == "exporter" else "best_ckpt"
    again = experiment.evaluate(
        row, folder, str(folder / "run" / subdirectory / f"best_ckpt-{best}")
    )
    kept = {name: values[best][name] for name in _named_values(values[best])}
    numbers = {name: value for name, value in again.items() if np.ndim(value) == 0}
    _compare_values(row, numbers, kept, f"the best state, of step {best}")


def _fits_keras(row: Row) -> bool:
    wanted = {
        "replicas": (1,),
        "virtual": (0,),
        "accumulation": (1,),
        "average": ("none",),
        "loss": ("compiled", "weighted"),
        "precision": ("float32",),
        "trainer": ("single",),
        "data": ("arrays", "records", "generator", "uneven"),
    }
    return row["model"] != "dropout" and all(row[name] in each for name, each in wanted.items())


def _compare_with_fit(row: Row, weights: dict[str, Any], folder: pathlib.Path) -> None:
    """Compare weights and reports with the results of `fit` for the same model and batches."""
    keras.utils.clear_session()
    model = experiment.ToyTask(experiment.build_config(row, folder).task).build_model()
    if row["model"] == "frozen":
        model.get_layer("hidden").trainable = False
    clipping = {"none": {}, "norm": {"clipnorm": oracle.CLIP_NORM}}
    rate = keras.optimizers.schedules.CosineDecay(oracle.LEARNING_RATE, oracle.STEPS)
    model.compile(
        keras.optimizers.SGD(
            rate,
            momentum=oracle.MOMENTUM,
            **clipping.get(row["clipping"], {"global_clipnorm": oracle.CLIP_NORM}),
        ),
        loss="mse",
        metrics=experiment.build_metrics(row["metrics"]) if row["metrics"] != "vector" else None,
    )
    history = model.fit(
        _keras_data(row, oracle.train_batches(row, "a"), oracle.STEPS).repeat(),
        steps_per_epoch=oracle.INTERVAL,
        epochs=oracle.STEPS // oracle.INTERVAL,
        validation_data=_keras_data(row, _validation_batches(), 3).repeat(),
        validation_steps=3,
        shuffle=False,
        verbose=0,
    ).history
    _compare_weights(row, weights, experiment.weights_of(model))
    records = _records(folder / "run")
    for number, step in enumerate(range(oracle.INTERVAL, oracle.STEPS + 1, oracle.INTERVAL)):
        for name, values in history.items():
            split = "validation" if name.startswith("val_") else "train"
            # Keras numbers unnamed metrics per process: names in the second model end in `_1`.
            name = name.removeprefix("val_").removesuffix("_1")
            loss = "validation_loss" if split == "validation" else "training_loss"
            if split == "validation" and row["evaluation"] == "aggregate_logs" and name != "loss":
                continue
            found = records[step, split][loss if name == "loss" else name]
            _assert_close(row, found, values[number], scale=1.0)


def _keras_data(row: Row, batches: Iterator[oracle.Arrays], count: int) -> tf.data.Dataset:
    def generate() -> Iterator[Any]:
        for batch in itertools.islice(batches, count):
            features = {"x": batch["x"]}
            if row["model"] == "embedding":
                features["ids"] = batch["ids"]
            weights = (batch["weights"],) if row["loss"] == "weighted" else ()
            yield features, batch["labels"], *weights

    data = list(generate())
    signature = tf.nest.map_structure(
        lambda part: tf.TensorSpec((None, *part.shape[1:]), part.dtype), data[0]
    )
    return tf.data.Dataset.from_generator(lambda: iter(data), output_signature=signature)


def _validation_batches() -> Iterator[oracle.Arrays]:
    data = oracle.examples("a/validation", oracle.NUM_VALIDATION_EXAMPLES)
    for first in range(0, oracle.NUM_VALIDATION_EXAMPLES, oracle.BATCH_SIZE):
        yield oracle.part_of(data, slice(first, first + oracle.BATCH_SIZE))


def _stop_and_compare(row: Row, weights: dict[str, Any], folder: pathlib.Path) -> None:
    """Assert that a stopped and resumed run equals the uninterrupted run bit for bit."""
    stopped = folder / "stopped"
    stopped.mkdir()
    codes = []
    while not (stopped / "weights.npz").exists():
        assert len(codes) < _MAX_STARTS, codes
        module = "tests.combinations.process"
        command = commands.Command(["-m", module, json.dumps(row), stopped])
        codes.append(command.wait())
        was_stopped = len(codes) == 1
        assert (codes[-1] != 0) == was_stopped, command.stderr[-3000:]
    with np.load(stopped / "weights.npz") as saved:
        assert set(saved) == set(weights)
        for name, value in weights.items():
            np.testing.assert_array_equal(saved[name], value, err_msg=name)
    found, wanted = (_records(one / "run") for one in (stopped, folder / "unbroken"))
    for key, record in wanted.items():
        # A run that SIGTERM stops between two reports writes a training report early.
        if row["stop"] != "SIGTERM" or key[1] == "validation":
            kept = {name: value for name, value in record.items() if name not in _OF_TIME}
            assert {name: found[key].get(name) for name in kept} == kept
    _compare_best(row, stopped)


def _records(model_dir: pathlib.Path) -> dict[tuple[int, str], dict[str, Any]]:
    path = model_dir / "metrics.json"
    lines = path.read_text().splitlines() if path.exists() else []
    records = map(json.loads, lines)
    return {(one["step"], one["split"]): one for one in records}
