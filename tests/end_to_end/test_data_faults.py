"""Missing, damaged, endless or wrong data end a run with an error that locates them.

The faults are listed in docs/reliability.md.
"""

import dataclasses
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import pipeline
from official_lite.common import errors
from official_lite.core import base_task, base_trainer, input_reader, task_factory
from official_lite.core import config_definitions as cfg
from official_lite.data import length, tf_data_options

NUM_EXAMPLES = 24
RECORD_BYTES = 64


@dataclasses.dataclass
class FaultyConfig(cfg.TaskConfig):
    """The config of a task with faulty data.

    Attributes:
        source: A key of `_SOURCES`; if empty, the task reads the files in `input_path`.
        validation_source: The corresponding key for the evaluation data.
    """

    source: str = ""
    validation_source: str = ""


@task_factory.register_task_cls(FaultyConfig)
class FaultyTask(base_task.Task):
    """A classifier of four classes, with faulty data."""

    def build_model(self) -> keras.Model:
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(4)])

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        config = self.task_config
        source = config.source if params.is_training else config.validation_source
        if source:
            return _SOURCES[source](params.global_batch_size)
        return input_reader.InputReader(params, decoder_fn=_decode).read(input_context)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> Any:
        return tf.reduce_mean(
            keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)
        )

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]


def _decode(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    numbers = tf.io.decode_raw(record, tf.float32)
    return tf.ensure_shape(numbers[:2], [2]), tf.cast(numbers[2], tf.int32)


def _examples(count: int = NUM_EXAMPLES) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(count, 2)).astype(np.float32)
    return x, np.arange(count, dtype=np.int32) % 4


def _arrays(batch_size: int, count: int = NUM_EXAMPLES, label: int | None = None) -> Any:
    x, y = _examples(count)
    if label is not None:
        y[-1] = label
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size)


def _generated(rows: Callable[[], Iterator[Any]], batch_size: int) -> tf.data.Dataset:
    signature = (tf.TensorSpec([2], tf.float32), tf.TensorSpec([], tf.int32))
    return tf.data.Dataset.from_generator(rows, output_signature=signature).batch(batch_size)


def _raising() -> Iterator[Any]:
    for index, row in enumerate(zip(*_examples(), strict=True)):
        if index == 18:
            raise OSError("the server is gone")
        yield row


def _misshapen() -> Iterator[Any]:
    yield from ((np.zeros(3, np.float32), 0) for _ in range(8))


def _hanging() -> Iterator[Any]:
    for index, row in enumerate(zip(*_examples(), strict=True)):
        if index == 8:
            time.sleep(1.0)
        yield row


_SOURCES: dict[str, Callable[[int], tf.data.Dataset]] = {
    "good": _arrays,
    "empty": lambda size: _arrays(size, count=0),
    "endless": lambda size: _arrays(size).repeat(),
    "of unknown length": lambda size: _arrays(size).filter(lambda x, y: True),
    "bad label": lambda size: _arrays(size, label=4),
    "raising": lambda size: _generated(_raising, size),
    "misshapen": lambda size: _generated(_misshapen, size),
    "hanging": lambda size: _generated(_hanging, size),
}


def _experiment(**overrides: Any) -> cfg.ExperimentConfig:
    params = cfg.ExperimentConfig(
        task=FaultyConfig(
            train_data=cfg.DataConfig(global_batch_size=8, is_training=True, seed=1),
            validation_data=cfg.DataConfig(
                global_batch_size=8, is_training=False, drop_remainder=False
            ),
            validation_source="good",
        ),
        trainer=cfg.TrainerConfig(
            train_steps=6,
            steps_per_loop=6,
            validation_interval=6,
            checkpoint_interval=6,
            writers=["jsonl"],
            optimizer_config=cfg.OptimizationConfig(
                {"optimizer": {"type": "sgd"}, "learning_rate": {"type": "constant"}}
            ),
        ),
        runtime=cfg.RuntimeConfig(distribution_strategy="off", execution="graph"),
    )
    params.override(overrides)
    return params


def _run(model_dir: pathlib.Path, mode: str = "train_and_eval", **overrides: Any) -> Any:
    run = pipeline.RunPipeline(_experiment(**overrides), mode, str(model_dir))
    return run.run()


def _write(path: pathlib.Path, options: str | None = None, count: int = NUM_EXAMPLES) -> bytes:
    with tf.io.TFRecordWriter(str(path), options) as writer:
        for x, y in zip(*_examples(count), strict=True):
            numbers = np.zeros(RECORD_BYTES // 4 - 4, np.float32)
            numbers[:3] = [*x, y]
            writer.write(numbers.tobytes())
    return path.read_bytes()


def _files(pattern: pathlib.Path) -> dict[str, Any]:
    return {"train_data": {"input_path": str(pattern)}}


@pytest.fixture
def model_dir(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "run"


@pytest.mark.parametrize("names", [["a.tfrecord"], ["a.tfrecord", "b.tfrecord"]])
def test_files_without_records_end_the_run_with_an_error_naming_their_pattern(
    tmp_path: pathlib.Path, model_dir: pathlib.Path, names: list[str]
) -> None:
    for name in names:
        # The files are not empty, because `tests/data/test_file_patterns.py` tests empty files.
        (tmp_path / name).write_bytes(b"\0\0\0")
    with pytest.raises(errors.DataError, match=r"0 examples matched .*\*\.tfrecord") as caught:
        _run(model_dir, task=_files(tmp_path / "*.tfrecord"))
    assert caught.value.exit_code == 3


def test_empty_training_dataset_ends_the_run_with_a_data_error(model_dir: pathlib.Path) -> None:
    with pytest.raises(errors.DataError, match="training data"):
        _run(model_dir, task={"source": "empty"})


def test_empty_evaluation_data_end_the_run_without_metrics(model_dir: pathlib.Path) -> None:
    with pytest.raises(errors.DataError, match="evaluation data are empty"):
        _run(model_dir, task={"source": "good", "validation_source": "empty"})
    assert '"split": "validation"' not in (model_dir / "metrics.json").read_text()


def test_finite_training_data_are_repeated_until_the_last_step(model_dir: pathlib.Path) -> None:
    # The data have three batches for six steps.
    _run(model_dir, task={"source": "good"})
    assert (model_dir / "ckpt-6.index").exists()


def test_endless_evaluation_data_are_refused_unless_validation_steps_are_set(
    model_dir: pathlib.Path,
) -> None:
    endless = {"source": "good", "validation_source": "endless"}
    with pytest.raises(errors.ConfigValueError, match="repeat forever") as caught:
        _run(model_dir, task=endless)
    assert caught.value.exit_code == 2
    assert not list(model_dir.glob("ckpt*"))
    _run(model_dir, task=endless, trainer={"validation_steps": 2})


def test_evaluation_that_does_not_end_in_time_logs_a_warning_and_then_raises(
    model_dir: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unknown = {"source": "good", "validation_source": "of unknown length"}
    monkeypatch.setattr(length, "_BATCHES_BETWEEN_LOOKS", 1)
    monkeypatch.setattr(length, "_WARNING_SECONDS", 0.0)
    _run(model_dir, task=unknown)
    assert "without reaching the end" in caplog.text
    monkeypatch.setattr(length, "_MAX_SECONDS", 0.0)
    with pytest.raises(errors.DataError, match="without reaching the end"):
        _run(model_dir.with_name("other"), task=unknown)


def _cut_off(data: bytes) -> bytes:
    return data[:-20]


def _flip_a_bit(data: bytes) -> bytes:
    damaged = bytearray(data)
    damaged[10 * RECORD_BYTES + 30] ^= 1
    return bytes(damaged)


@pytest.mark.parametrize(
    ("damage", "answer", "execution"),
    [
        (_cut_off, r"b\.tfrecord` .*truncated record at \d{4}", "graph"),
        (_flip_a_bit, r"b\.tfrecord` .*corrupted record at 6\d\d", "xla_loop"),
        (lambda _: b"some text, and no records\n", r"b\.tfrecord` .* at 0", "graph"),
    ],
)
def test_error_about_a_damaged_file_names_the_file_and_the_position_of_the_damage(
    tmp_path: pathlib.Path,
    model_dir: pathlib.Path,
    damage: Callable[[bytes], bytes],
    answer: str,
    execution: str,
) -> None:
    _write(tmp_path / "a.tfrecord")
    (tmp_path / "b.tfrecord").write_bytes(damage(_write(tmp_path / "b.tfrecord")))
    with pytest.raises(errors.DataError, match=answer) as caught:
        _run(
            model_dir,
            task=_files(tmp_path / "*.tfrecord"),
            runtime={"execution": execution},
            trainer={"train_steps": 12},
        )
    assert caught.value.exit_code == 3


def test_unexpectedly_compressed_file_is_named_in_the_error(
    tmp_path: pathlib.Path, model_dir: pathlib.Path
) -> None:
    _write(tmp_path / "a.tfrecord", "GZIP")
    with pytest.raises(errors.DataError, match=r"a\.tfrecord.*compression"):
        _run(model_dir, task=_files(tmp_path / "a.tfrecord"))


def test_damaged_records_are_skipped_up_to_the_skip_bad_records_limit(
    tmp_path: pathlib.Path, model_dir: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = _cut_off(_flip_a_bit(_write(tmp_path / "a.tfrecord")))
    (tmp_path / "a.tfrecord").write_bytes(damaged)
    files = _files(tmp_path / "a.tfrecord")
    files["train_data"]["skip_bad_records"] = 2
    _run(model_dir, task=files)
    assert caplog.text.count("Skipping the record") == 2
    files["train_data"]["skip_bad_records"] = 1
    with pytest.raises(errors.DataError, match="`skip_bad_records` allows only 1"):
        _run(model_dir.with_name("other"), task=files)


def test_replica_without_examples_does_not_change_the_metrics(
    two_replicas: tf.distribute.MirroredStrategy,
) -> None:
    def evaluate(strategy: tf.distribute.Strategy, batch_size: int) -> dict[str, float]:
        with strategy.scope():
            keras.utils.set_random_seed(1)
            task = FaultyTask(_experiment().task)
            params = _experiment(
                task={
                    "validation_source": "",
                    "validation_data": {"global_batch_size": batch_size},
                }
            )
            dataset = strategy.experimental_distribute_dataset(
                tf_data_options.without_idle_autotuner(_arrays(batch_size, count=17))
            )
            trainer = _trainer(params, task, dataset)
            logs = trainer.evaluate(tf.constant(-1))
        return {name: float(value) for name, value in logs.items()}

    whole = evaluate(tf.distribute.get_strategy(), 17)
    # The last batch has one example, so one of the two replicas gets none.
    shared = evaluate(two_replicas, 4)
    assert shared["accuracy"] == pytest.approx(whole["accuracy"])


def _trainer(params: Any, task: Any, dataset: Any) -> Any:
    return base_trainer.Trainer(
        params,
        task,
        task.build_model(),
        keras.optimizers.SGD(),
        train=False,
        validation_dataset=dataset,
    )


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        ("bad label", r"out of range\. Received a label value of 4 .*\[0, 4\)"),
        ("misshapen", r"shape \(3,\) where an element of shape \(2,\) was expected"),
    ],
)
def test_bad_label_or_misshapen_batch_ends_the_run_before_a_checkpoint_is_saved(
    model_dir: pathlib.Path, source: str, answer: str
) -> None:
    with pytest.raises(errors.DataError, match=answer) as caught:
        _run(model_dir, task={"source": source})
    assert caught.value.exit_code == 3
    assert not list(model_dir.glob("ckpt-*"))


@pytest.mark.parametrize("execution", ["graph", "eager"])
def test_error_in_a_data_generator_is_reported_with_its_step_and_source_line(
    model_dir: pathlib.Path, execution: str
) -> None:
    # The nineteenth example is in the third batch.
    answer = r"around step [23]: OSError: the server is gone \(.*test_data_faults.py:\d+, in "
    with pytest.raises(errors.DataError, match=answer):
        _run(model_dir, task={"source": "raising"}, runtime={"execution": execution})


def test_hanging_data_generator_is_named_in_a_stall_warning(
    model_dir: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    hooks = [{"name": "stall_warning", "seconds": 0.2}]
    _run(model_dir, task={"source": "hanging"}, trainer={"hooks": hooks})
    assert "No step was completed for" in caplog.text
    assert "in _hanging" in caplog.text
