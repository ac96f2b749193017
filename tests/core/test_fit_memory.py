"""Tests of `trainer.fit_memory`: runs whose training step needs more memory than there is."""

import dataclasses
import json
import pathlib
import weakref
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from official_lite import orbit, pipeline
from official_lite.common import errors
from official_lite.core import base_trainer, train_lib
from official_lite.modeling.hyperparams import base_config, yaml_io
from tests.line_experiment import LineConfig, LineTask, line_experiment


def _require_memory(is_large: bool) -> None:
    if is_large:
        raise MemoryError("OOM when allocating tensor with shape[1000000000]")


@dataclasses.dataclass
class NeedyConfig(LineConfig):
    """The config of a task that has memory only for a few examples.

    Attributes:
        max_examples: The number of examples for which there is memory.
        allocates: Whether more examples allocate exabytes, instead of raising the same error.
            TensorFlow waits ten seconds for such memory.
    """

    max_examples: int = 2
    allocates: bool = False
    dropout_rate: float = 0.5


@base_config.bind(NeedyConfig)
class NeedyTask(LineTask):
    """A task whose training step runs out of memory with more than `max_examples` examples."""

    def train_step(self, inputs: Any, model: Any, optimizer: Any, metrics: Any = None) -> Any:
        is_large = tf.shape(inputs[0])[0] > self.task_config.max_examples
        if self.task_config.allocates:
            zeros = tf.zeros([tf.where(is_large, 10**9, 1), 10**9 * tf.cast(is_large, tf.int32)])
            tf.debugging.assert_less(tf.reduce_sum(zeros), 1.0)
        else:
            tf.numpy_function(_require_memory, [is_large], [])
        return super().train_step(inputs, model, optimizer, metrics)


def needy_experiment(grad_accum_steps: int = 1, **overrides: Any) -> Any:
    params = line_experiment()
    params.task = NeedyConfig(params.task.as_dict())
    trainer = {"grad_accum_steps": grad_accum_steps, "fit_memory": True}
    params.override({"trainer": trainer, **overrides})
    return params


def train(params: Any, model_dir: pathlib.Path, strategy: Any = None, **kwargs: Any) -> Any:
    task = kwargs.pop("task_cls", NeedyTask)(params.task)
    model, _ = train_lib.run_experiment(strategy, task, "train", params, str(model_dir), **kwargs)
    return [weight.numpy() for weight in model.weights]


def run_record(model_dir: pathlib.Path) -> dict[str, Any]:
    return json.loads((model_dir / "run.json").read_text())


def values(model_dir: pathlib.Path) -> list[dict[str, Any]]:
    """Return what a run has recorded, except times."""
    records = map(json.loads, (model_dir / "metrics.json").read_text().splitlines())
    return [
        {key: value for key, value in record.items() if "time" not in key and "per_sec" not in key}
        for record in records
    ]


def checkpoint(model_dir: pathlib.Path, step: int) -> dict[str, Any]:
    reader = tf.train.load_checkpoint(str(model_dir / f"ckpt-{step}"))
    names = reader.get_variable_to_shape_map()
    return {name: reader.get_tensor(name) for name in names if "OBJECT_GRAPH" not in name}


@pytest.mark.parametrize(("num_replicas", "expected"), [(1, 4), (2, 2)])
def test_run_that_runs_out_of_memory_continues_like_a_run_with_more_micro_batches(
    tmp_path, two_replicas, num_replicas, expected, caplog
) -> None:
    strategy = two_replicas if num_replicas == 2 else None
    given, fixed = tmp_path / "given", tmp_path / "fixed"
    weights = train(needy_experiment(), given, strategy)
    changes = [
        r.message for r in caplog.records if "`trainer.grad_accum_steps` changes" in r.message
    ]
    assert len(changes) == expected // 2
    assert "OOM when allocating tensor" in changes[0]
    expected_weights = train(needy_experiment(expected), fixed, strategy)
    for one, other in zip(weights, expected_weights, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_equal(checkpoint(given, 8), checkpoint(fixed, 8))
    assert values(given) == values(fixed)
    record = run_record(given)
    assert record["fit_memory"] == {"grad_accum_steps": expected}
    assert record["params"]["trainer.grad_accum_steps"] == 1
    assert yaml_io.read_yaml(str(given / "params.yaml"))["trainer"]["grad_accum_steps"] == expected


def test_run_that_fits_into_memory_keeps_its_number_of_micro_batches(tmp_path) -> None:
    train(needy_experiment(task={"max_examples": 8}), tmp_path)
    assert "fit_memory" not in run_record(tmp_path)


def test_resumed_run_reuses_the_micro_batch_count_that_fits_into_memory(tmp_path, caplog) -> None:
    def stop(hook: orbit.Hook) -> None:
        if hook.controller.step == 6:
            raise RuntimeError("stopped")

    hook = orbit.hooks.LambdaHook(after_step=stop, every_n_steps=1)
    with pytest.raises(RuntimeError, match="stopped"):
        train(needy_experiment(), tmp_path / "given", hooks=[hook])
    caplog.clear()
    train(needy_experiment(), tmp_path / "given")
    assert "ran out of memory" not in caplog.text
    assert run_record(tmp_path / "given")["fit_memory"] == {"grad_accum_steps": 4}
    train(needy_experiment(4), tmp_path / "fixed")
    np.testing.assert_equal(checkpoint(tmp_path / "given", 8), checkpoint(tmp_path / "fixed", 8))


def test_run_resumed_on_more_replicas_uses_fewer_micro_batches_if_the_batch_has_too_few_examples(
    tmp_path, two_replicas, caplog
) -> None:
    params = needy_experiment(task={"max_examples": 1})
    train(params, tmp_path)
    assert run_record(tmp_path)["fit_memory"] == {"grad_accum_steps": 8}
    caplog.clear()
    params.trainer.train_steps += 2
    train(params, tmp_path, two_replicas)
    assert run_record(tmp_path)["fit_memory"] == {"grad_accum_steps": 4}
    assert "`trainer.grad_accum_steps` changes from 8 to 4" in caplog.text
    assert "ran out of memory" not in caplog.text


def test_run_that_has_too_little_memory_for_one_example_raises_the_out_of_memory_error(
    tmp_path, caplog
) -> None:
    with pytest.raises(errors.OutOfMemoryError, match="OOM when allocating tensor") as caught:
        train(needy_experiment(task={"max_examples": 0}), tmp_path)
    assert isinstance(caught.value.__cause__, tf.errors.ResourceExhaustedError)
    assert caught.value.exit_code == 1
    assert "not a multiple of 16," in caplog.text
    # When nothing else uses the memory, the next start may fit.
    assert run_record(tmp_path)["fit_memory"] == {}
    params = needy_experiment(task={"max_examples": 4})
    train(params, tmp_path, allow_config_change=True)
    assert run_record(tmp_path)["fit_memory"] == {"grad_accum_steps": 2}


def _open_another_file() -> None:
    # TensorFlow turns this error into the one that it raises for an exhausted resource.
    raise MemoryError("rows.tfrecord; Too many open files")


class OpeningTask(NeedyTask):
    """A task whose training step exhausts a resource that smaller batches do not free."""

    def train_step(self, inputs: Any, model: Any, optimizer: Any, metrics: Any = None) -> Any:
        tf.numpy_function(_open_another_file, [], [])
        return super().train_step(inputs, model, optimizer, metrics)


def test_exhausted_resource_other_than_memory_ends_the_run(tmp_path) -> None:
    with pytest.raises(tf.errors.ResourceExhaustedError, match="Too many open files"):
        train(needy_experiment(), tmp_path, task_cls=OpeningTask)
    assert run_record(tmp_path)["params"]["trainer.grad_accum_steps"] == 1
    assert yaml_io.read_yaml(str(tmp_path / "params.yaml"))["trainer"]["grad_accum_steps"] == 1


def test_fit_memory_raises_if_a_trainer_is_passed_to_run_experiment(tmp_path, make_trainer) -> None:
    trainer = make_trainer(needy_experiment())
    with pytest.raises(errors.ConfigValueError, match="got a trainer"):
        train(needy_experiment(), tmp_path, trainer=trainer)


def test_pipeline_frees_a_model_that_exceeds_memory_and_restarts_its_stages(tmp_path) -> None:
    calls: list[str] = []
    models: list[Any] = []

    class Build(pipeline.Build):
        def make_model(self, ctx: pipeline.ExperimentContext) -> Any:
            calls.append("build")
            assert all(model() is None for model in models)
            model = super().make_model(ctx)
            models.append(weakref.ref(model))
            return model

    class Finalize(pipeline.Finalize):
        def __call__(self, ctx: pipeline.ExperimentContext) -> str | None:
            calls.append("finalize")
            return super().__call__(ctx)

    params = needy_experiment(task={"max_examples": 4, "allocates": True})
    stages, hooks = {"build": Build, "finalize": Finalize}, [orbit.hooks.LambdaHook()]
    model_dir = str(tmp_path / "given")
    pipeline.RunPipeline(params, "train", model_dir, stages=stages, hooks=hooks).run()
    assert calls == ["build", "build", "finalize"]
    assert run_record(tmp_path / "given")["fit_memory"] == {"grad_accum_steps": 2}
    fixed = needy_experiment(2, task={"max_examples": 4})
    pipeline.RunPipeline(fixed, "train", str(tmp_path / "fixed")).run()
    np.testing.assert_equal(checkpoint(tmp_path / "given", 8), checkpoint(tmp_path / "fixed", 8))


def test_fit_memory_refuses_a_trainer_with_its_own_train_step(experiment, make_trainer) -> None:
    class OwnTrainer(base_trainer.Trainer):
        def train_step(self, iterator: Any) -> None:
            super().train_step(iterator)

    params = experiment(trainer={"fit_memory": True})
    with pytest.raises(errors.ConfigValueError, match=r"`trainer\.fit_memory` is True"):
        make_trainer(params, cls=OwnTrainer)
