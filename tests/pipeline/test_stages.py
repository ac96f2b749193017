"""The stages: how they are found, what each does by default, and what may be replaced."""

import contextlib
import json
import os
import pathlib
import re
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import logging

from official_lite import pipeline
from official_lite.common import errors
from official_lite.config import epochs
from official_lite.core import base_trainer, task_factory, train_lib, trainer_factory
from official_lite.core import config_definitions as cfg
from official_lite.modeling.multitask import configs, multitask, test_utils
from official_lite.pipeline import stages
from official_lite.pipeline.stages import Engine

HOSTS = ["localhost:1", "localhost:2"]


def _cluster(monkeypatch, task: str, index: int, **jobs) -> None:
    config = {"cluster": jobs, "task": {"type": task, "index": index}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))


def test_pipeline_engine_depends_on_the_number_of_replicas(two_replicas) -> None:
    assert stages.engine_of(tf.distribute.get_strategy()) is Engine.SINGLE
    assert stages.engine_of(tf.distribute.OneDeviceStrategy("CPU:0")) is Engine.SINGLE
    assert stages.engine_of(two_replicas) is Engine.LOCAL_CLUSTER


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"distribution_strategy": "off", "num_gpus": 0}, Engine.SINGLE),
        ({"distribution_strategy": "one_device"}, Engine.SINGLE),
        ({"distribution_strategy": "mirrored"}, Engine.SINGLE),
        ({"distribution_strategy": "mirrored", "num_gpus": -1}, Engine.SINGLE),
        ({"distribution_strategy": "mirrored", "num_gpus": 2}, Engine.LOCAL_CLUSTER),
        (
            {"distribution_strategy": "Mirrored", "devices": ["CPU:0", "CPU:1"]},
            Engine.LOCAL_CLUSTER,
        ),
        ({"distribution_strategy": "tpu", "tpu": "local"}, Engine.LOCAL_CLUSTER),
        ({"distribution_strategy": "multi_worker_mirrored"}, Engine.CLUSTER),
    ],
)
def test_expected_pipeline_engine_follows_from_the_runtime_config(
    monkeypatch, fields, expected
) -> None:
    _cluster(monkeypatch, "worker", 0, worker=HOSTS)
    assert stages.expected_engine(cfg.RuntimeConfig(**fields)) is expected


def test_cluster_can_be_configured_by_worker_hosts_and_task_index(monkeypatch) -> None:
    monkeypatch.setenv("TF_CONFIG", "")
    config = cfg.RuntimeConfig(
        distribution_strategy="multi_worker_mirrored", worker_hosts=",".join(HOSTS), task_index=1
    )
    assert stages.expected_engine(config) is Engine.CLUSTER
    assert not stages.is_chief(config)


@pytest.mark.parametrize(
    ("task", "index", "jobs", "expected"),
    [
        ("worker", 0, {"worker": HOSTS}, True),
        ("worker", 1, {"worker": HOSTS}, False),
        ("chief", 0, {"chief": HOSTS[:1], "worker": HOSTS[1:]}, True),
        ("worker", 0, {"chief": HOSTS[:1], "worker": HOSTS[1:]}, False),
        ("evaluator", 0, {"worker": HOSTS}, True),
    ],
)
def test_is_chief_is_true_for_the_chief_or_first_worker_and_for_the_evaluator(
    monkeypatch, task, index, jobs, expected
) -> None:
    _cluster(monkeypatch, task, index, **jobs)
    multi = cfg.RuntimeConfig(distribution_strategy="multi_worker_mirrored")
    assert stages.is_chief(multi) is expected
    # A single-process strategy ignores the cluster.
    assert stages.is_chief(cfg.RuntimeConfig(distribution_strategy="mirrored"))


@pytest.mark.parametrize(
    ("strategy", "task", "hosts", "warns"),
    [
        ("mirrored", "worker", HOSTS, True),
        ("mirrored", "worker", HOSTS[:1], False),
        ("one_device", "evaluator", HOSTS, False),
        ("multi_worker_mirrored", "worker", HOSTS, False),
    ],
)
def test_strategy_that_ignores_the_workers_of_a_cluster_logs_a_warning(
    monkeypatch, caplog, strategy, task, hosts, warns
) -> None:
    _cluster(monkeypatch, task, 0, worker=hosts)
    stages.warn_of_unused_workers(cfg.RuntimeConfig(distribution_strategy=strategy))
    assert ("distribution_strategy=multi_worker_mirrored" in caplog.text) is warns


def test_error_for_a_missing_context_attribute_names_the_stage_that_needs_it(
    experiment, tmp_path
) -> None:
    class Build(pipeline.Build):
        def __call__(self, ctx):
            return "run"

    with pytest.raises(errors.ConfigValueError, match=r"`run` needs `ctx.runner`"):
        pipeline.RunPipeline(experiment(), "train", str(tmp_path), {"build": Build}).run()


def test_reading_the_model_of_a_phase_finished_in_another_process_raises_an_error() -> None:
    phase = pipeline.FinishedPhase(name="pretrain", mode="train", model_dir="/runs/pretrain")
    with pytest.raises(errors.CheckpointError, match=r"no model in this process.*/runs/pretrain"):
        phase.model  # noqa: B018  (the access is what fails)


STAGE = """
from official_lite import pipeline

class {name}(pipeline.{base}):
    mark = {mark!r}
"""


def _write(path: pathlib.Path, *stages: tuple[str, str], mark: str = "") -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(STAGE.format(name=n, base=b, mark=mark) for n, b in stages))


@pytest.fixture
def find(experiment, tmp_path):
    """Return a function that finds the stages of a config in which one stage is set."""
    return lambda stage, spec: stages.find_stages(
        experiment(pipeline={stage: spec}, workspace=str(tmp_path))
    )


def test_stages_missing_from_the_config_use_the_default_classes(find, tmp_path) -> None:
    _write(tmp_path / "mine.py", ("Mine", "Initialize"))
    stages = find("initialize", "{workspace}/mine.py")
    assert tuple(stages) == pipeline.STAGES
    assert stages.pop("initialize").__name__ == "Mine"
    assert list(stages.values()) == [
        pipeline.Prepare,
        pipeline.Build,
        pipeline.Run,
        pipeline.Finalize,
    ]


def test_stage_is_found_by_its_registered_name(find) -> None:
    @pipeline.register_stage("tests/quiet")
    class Quiet(pipeline.Finalize):
        pass

    assert find("finalize", "tests/quiet")["finalize"] is Quiet
    with pytest.raises(errors.UnknownNameError, match="`tests/quiet`"):
        find("finalize", "tests/quite")


def test_stage_file_with_two_candidate_classes_requires_a_class_name(find, tmp_path) -> None:
    _write(tmp_path / "two.py", ("First", "Run"), ("Second", "Run"), ("Other", "Build"))
    with pytest.raises(errors.ConfigValueError, match="`First` and `Second`"):
        find("run", "{workspace}/two.py")
    assert find("run", "{workspace}/two.py:Second")["run"].__name__ == "Second"


def test_error_for_an_unknown_or_unsuitable_stage_class_names_its_file(find, tmp_path) -> None:
    _write(tmp_path / "build.py", ("Mine", "Build"))
    with pytest.raises(errors.ConfigTypeError, match=r"build\.py:Mine.*Run"):
        find("run", "{workspace}/build.py:Mine")
    with pytest.raises(errors.UnknownNameError, match=r"build\.py:Mien.*`Mine`"):
        find("build", "{workspace}/build.py:Mien")
    with pytest.raises(errors.UnknownNameError, match=r"biuld\.py"):
        find("build", "{workspace}/biuld.py")


def test_stage_files_with_equal_names_do_not_collide(find, tmp_path) -> None:
    _write(tmp_path / "a" / "mine.py", ("Mine", "Run"), mark="a")
    _write(tmp_path / "b" / "mine.py", ("Mine", "Run"), mark="b")
    marks = [find("run", f"{{workspace}}/{d}/mine.py")["run"].mark for d in "ab"]
    assert marks == ["a", "b"]


def test_stages_argument_overrides_the_config_and_an_unknown_stage_name_raises(experiment) -> None:
    class Mine(pipeline.Run):
        pass

    params = experiment(pipeline={"run": "nowhere.py"})
    assert stages.find_stages(params, {"run": Mine})["run"] is Mine
    with pytest.raises(errors.UnknownNameError, match="`run`"):
        stages.find_stages(params, {"rum": Mine})


def test_stage_class_without_a_file_is_described_by_its_module() -> None:
    typed = type("Typed", (pipeline.Run,), {"__module__": "__main__"})
    assert stages.describe("run", typed).startswith("stage run: Typed (")
    nowhere = type("Typed", (pipeline.Run,), {"__module__": "nowhere"})
    assert stages.describe("run", nowhere) == "stage run: Typed (nowhere)"


def test_error_for_a_stage_without_a_call_method_names_the_stage(context) -> None:
    class Empty(pipeline.Stage):
        pass

    ctx = context()
    assert Empty.view(ctx) is ctx
    with pytest.raises(NotImplementedError, match="Empty"):
        Empty(ctx)(ctx)


def test_prepare_stage_can_set_environment_variables_before_the_task_is_built(
    experiment, tmp_path, monkeypatch
) -> None:
    class Prepare(pipeline.Prepare):
        def __call__(self, ctx):
            seen.append((ctx.strategy, ctx.task, ctx.model))
            monkeypatch.setitem(os.environ, "LINE_SLOPE", "-5.0")

    seen = []
    params = experiment(trainer={"train_steps": 100})
    model, _ = pipeline.RunPipeline(params, "train", str(tmp_path), {"prepare": Prepare}).run()
    assert seen == [(None, None, None)]
    assert -5.1 < float(model.layers[0].kernel[0, 0]) < -4.9


@pytest.mark.parametrize(
    ("trainer", "steps"), [({}, 8), ({"train_epochs": 3, "steps_per_epoch": 0}, 12)]
)
def test_prepare_stage_may_change_the_number_of_examples_and_epochs(
    experiment, tmp_path, trainer, steps
) -> None:
    class Prepare(pipeline.Prepare):
        def __call__(self, ctx):
            seen.append((ctx.params.trainer.train_steps, ctx.params.trainer.train_epochs))
            ctx.params = ctx.params.replace(
                task={"train_data": {"num_examples": 32}}, trainer=trainer
            )

    class Finalize(pipeline.Finalize):
        def __call__(self, ctx):
            seen.append((ctx.global_step, ctx.params.trainer.steps_per_epoch))

    seen = []
    params = epochs.resolve(
        experiment(task={"train_data": {"num_examples": 16}}, trainer={"train_epochs": 2.0})
    )
    stages = {"prepare": Prepare, "finalize": Finalize}
    pipeline.RunPipeline(params, "train", str(tmp_path), stages).run()
    assert seen == [(4, None), (steps, 4)]


def test_prepare_stage_may_download_the_checkpoint_to_evaluate(experiment, tmp_path) -> None:
    class Prepare(pipeline.Prepare):
        def __call__(self, ctx):
            shutil.copytree(tmp_path / "elsewhere", ctx.model_dir, dirs_exist_ok=True)

    pipeline.RunPipeline(experiment(), "train", str(tmp_path / "elsewhere")).run()
    model_dir = str(tmp_path / "run")
    _, logs = pipeline.RunPipeline(experiment(), "eval", model_dir, {"prepare": Prepare}).run()
    assert logs["validation_loss"] > 0


def test_eval_mode_raises_if_prepare_downloads_no_checkpoint(experiment, tmp_path) -> None:
    class Prepare(pipeline.Prepare):
        pass

    with pytest.raises(errors.CheckpointError, match="random weights"):
        pipeline.RunPipeline(experiment(), "eval", str(tmp_path), {"prepare": Prepare}).run()


def _run(params, mode, model_dir, **stages):
    return pipeline.RunPipeline(params, mode, str(model_dir), stages).run()


def _remove_training_data(task_cls, monkeypatch) -> None:
    build_inputs = task_cls.build_inputs

    def without_training_data(self, params, input_context=None):
        if params.is_training:
            raise FileNotFoundError("train.csv")
        return build_inputs(self, params, input_context)

    monkeypatch.setattr(task_cls, "build_inputs", without_training_data)


@pytest.mark.parametrize("mode", ["eval", "continuous_eval", "test", "predict"])
@pytest.mark.parametrize("by", ["pipeline", "run_experiment"])
def test_run_with_train_epochs_evaluates_and_predicts_without_the_training_data(
    experiment, monkeypatch, tmp_path, mode, by
) -> None:
    cosine = {"initial_learning_rate": 0.1, "decay_ratio": 1.0}
    schedule = {"learning_rate": {"type": "cosine", "cosine": cosine}}
    params = experiment(
        task={"test_data": {"global_batch_size": 4, "is_training": False}},
        trainer={"train_epochs": 2, "optimizer_config": schedule},
    )
    _run(params, "train", tmp_path)
    _remove_training_data(type(task_factory.get_task(params.task)), monkeypatch)
    if by == "pipeline":
        _run(params, mode, tmp_path)
    else:
        task = task_factory.get_task(params.task, logging_dir=str(tmp_path))
        train_lib.run_experiment(None, task, mode, params, str(tmp_path))
    record = json.loads((tmp_path / f"run.{mode}.json").read_text())
    assert (record["status"], record["global_step"]) == ("done", 8)


@pytest.mark.parametrize("mode", ["eval", "test", "predict"])
@pytest.mark.parametrize("where", ["new directory", "other epochs"])
def test_run_without_known_train_steps_evaluates_and_predicts_without_the_training_data(
    experiment, monkeypatch, tmp_path, mode, where
) -> None:
    cosine = {"initial_learning_rate": 0.1, "decay_ratio": 1.0}
    trainer = {"optimizer_config": {"learning_rate": {"type": "cosine", "cosine": cosine}}}
    data: dict[str, object] = {"test_data": {"global_batch_size": 4, "is_training": False}}
    params = experiment(task=data, trainer={**trainer, "train_epochs": 2})
    _run(params, "train", tmp_path / "old")
    _remove_training_data(type(task_factory.get_task(params.task)), monkeypatch)
    model_dir = tmp_path / "old"
    if where == "new directory":
        model_dir, data = tmp_path / "new", {**data, "init_checkpoint": str(tmp_path / "old")}
    _run(experiment(task=data, trainer={**trainer, "train_epochs": 5}), mode, model_dir)
    assert json.loads((model_dir / f"run.{mode}.json").read_text())["status"] == "done"


def test_eval_mode_records_the_train_steps_of_increased_train_epochs(experiment, tmp_path) -> None:
    _run(experiment(trainer={"train_epochs": 2}), "train", tmp_path)
    _run(experiment(trainer={"train_epochs": 5}), "eval", tmp_path)
    record = json.loads((tmp_path / "run.eval.json").read_text())
    assert (record["global_step"], record["train_steps"]) == (8, 20)


def test_build_stage_that_replaces_the_model_does_not_change_the_config(
    experiment, tmp_path
) -> None:
    class Build(pipeline.Build):
        def make_model(self, ctx):
            layers = [keras.Input((2,)), keras.layers.Dense(5), keras.layers.Dense(1)]
            return keras.Sequential(layers)

    _run(experiment(), "train", tmp_path / "default")
    model, _ = _run(experiment(), "train", tmp_path / "swapped", build=Build)
    assert model.count_params() == 21
    record = json.loads((tmp_path / "swapped" / "run.json").read_text())
    assert record["num_parameters"] == 21
    texts = [(tmp_path / d / "params.yaml").read_text() for d in ("default", "swapped")]
    assert texts[0] == texts[1]


def test_build_stage_that_overrides_only_make_trainer_trains_with_the_new_trainer(
    experiment, records, tmp_path
) -> None:
    class Trainer(base_trainer.Trainer):
        def train_loop_end(self):
            return super().train_loop_end() | {"mine": 1.0}

    class Build(pipeline.Build):
        def make_trainer(self, ctx):
            return trainer_factory.create_trainer(
                ctx.params,
                ctx.task,
                train=True,
                evaluate=True,
                trainer_cls=Trainer,
                model=ctx.model,
                optimizer=ctx.optimizer,
            )

    _, logs = _run(experiment(), "train_and_eval", tmp_path, build=Build)
    assert logs["validation_loss"] > 0
    assert records(tmp_path, "train") == records(tmp_path, "validation") == [4, 8]
    assert '"mine": 1.0' in (tmp_path / "metrics.json").read_text()
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("ckpt-8")


def test_optimizer_made_by_the_build_stage_is_used_for_training(experiment, tmp_path) -> None:
    class Build(pipeline.Build):
        def make_optimizer(self, ctx):
            return keras.optimizers.SGD(0.0)

    class Run(pipeline.Run):
        def train(self, ctx):
            before = ctx.model.get_weights()
            super().train(ctx)
            for ours, theirs in zip(ctx.model.get_weights(), before, strict=True):
                np.testing.assert_array_equal(ours, theirs)
            seen.append(ctx.trainer.optimizer is ctx.optimizer)

    seen = []
    _run(experiment(), "train", tmp_path, build=Build, run=Run)
    assert seen == [True]


def test_pipeline_context_contains_the_model_and_optimizer_of_an_overridden_make_trainer(
    context,
) -> None:
    class Build(pipeline.Build):
        def make_trainer(self, ctx):
            model = ctx.task.build_model()
            return trainer_factory.create_trainer(
                ctx.params, ctx.task, train=True, evaluate=False, model=model
            )

    ctx = context()
    Build(ctx)(ctx)
    assert ctx.model is ctx.trainer.model
    assert ctx.optimizer is ctx.trainer.optimizer
    ctx.runner.close()
    ctx.exit_stack.close()


def test_pipeline_trains_the_same_weights_as_run_experiment(experiment, tmp_path) -> None:
    params = experiment(runtime={"seed": 3}, trainer={"train_epochs": 2.0})
    model, _ = _run(params, "train", tmp_path / "stages")
    task = task_factory.get_task(params.task)
    other, _ = train_lib.run_experiment(None, task, "train", params, str(tmp_path / "function"))
    for ours, theirs in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    texts = [(tmp_path / d / "params.yaml").read_text() for d in ("stages", "function")]
    assert texts[0] == texts[1]


def test_seed_is_set_before_the_task_is_built(experiment, tmp_path) -> None:
    class Build(pipeline.Build):
        def make_task(self, ctx):
            task = super().make_task(ctx)
            drawn.append((float(tf.random.uniform([])), float(np.random.random())))
            return task

    drawn: list[tuple[float, float]] = []
    for name in ("one", "other"):
        _run(experiment(runtime={"seed": 3}), "train", tmp_path / name, build=Build)
    assert drawn[0] == drawn[1]


@pytest.mark.usefixtures("bfloat16_kernels")
def test_mixed_precision_is_set_after_prepare_and_reset_after_finalize(
    experiment, tmp_path
) -> None:
    def recorder(base):
        class Recorder(base):
            def __call__(self, ctx):
                super().__call__(ctx)
                seen.append(keras.mixed_precision.dtype_policy().name)

        return Recorder

    seen = []
    stages = {"prepare": pipeline.Prepare, "run": pipeline.Run, "finalize": pipeline.Finalize}
    stages = {name: recorder(base) for name, base in stages.items()}
    params = experiment(runtime={"mixed_precision_dtype": "bfloat16"})
    _run(params, "train", tmp_path, **stages)
    assert seen == ["float32", "mixed_bfloat16", "mixed_bfloat16"]
    assert keras.mixed_precision.dtype_policy().name == "float32"


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_build_stage_prepares_only_training_or_only_evaluation_as_the_mode_requires(
    context, mode
) -> None:
    ctx = context(mode, task={"init_checkpoint": "somewhere"})
    pipeline.Build(ctx)(ctx)
    assert ctx.trainer.evaluates == (mode == "eval")
    assert ctx.controller.trainer is (ctx.trainer if mode == "train" else None)
    ctx.runner.close()
    ctx.exit_stack.close()


class MockConfig(configs.MultiTaskConfig):
    pass


class MockTasks(multitask.MultiTask):
    def build_multitask_model(self) -> test_utils.MockMultiTaskModel:
        model = test_utils.MockMultiTaskModel()
        # With biases of zero, the model would fit the data, which are zeros, from the beginning.
        model._shared_dense.bias_initializer = keras.initializers.Ones()
        return model


task_factory.register_task_cls(MockConfig)(MockTasks.from_config)


@pytest.fixture
def params() -> configs.MultiTaskExperimentConfig:
    routines = (
        configs.TaskRoutine(task_name="foo", task_config=test_utils.FooConfig(), eval_steps=2),
        configs.TaskRoutine(task_name="bar", task_config=test_utils.BarConfig(), eval_steps=2),
    )
    params = configs.MultiTaskExperimentConfig(
        task=MockConfig(task_routines=routines),
        runtime=cfg.RuntimeConfig(distribution_strategy="off"),
        pipeline=cfg.PipelineConfig(build="official_lite.pipeline.multitask_build:MultiTaskBuild"),
    )
    params.override(
        {
            "trainer": {
                "trainer_type": "joint",
                "checkpoint_interval": 2,
                "writers": ["jsonl"],
                "optimizer_config": {
                    "optimizer": {"type": "sgd"},
                    "ema": {"average_decay": 0.5},
                    "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.01}},
                },
            }
        }
    )
    return params


def test_multitask_trainer_in_a_pipeline_trains_resumes_and_evaluates_all_tasks(
    params, tmp_path: pathlib.Path
) -> None:
    def run(mode: str, train_steps: int):
        params.override({"trainer": {"train_steps": train_steps}})
        return pipeline.RunPipeline(params, mode, str(tmp_path)).run()

    model, logs = run("train_and_eval", 2)
    assert isinstance(model, test_utils.MockMultiTaskModel)
    # No step is left to train, so this run only restores the weights.
    resumed, _ = run("train", 2)
    _assert_equal(*([v.numpy() for v in one.trainable_variables] for one in (model, resumed)))
    assert run("train", 4)[1] == {}
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["status"], record["global_step"], record["num_parameters"]) == ("done", 4, 7)
    _, evaluated = run("eval", 4)
    for name in ("foo", "bar"):
        assert 0 < evaluated[name]["validation_loss"] < logs[name]["validation_loss"]


@pytest.fixture
def first_run(experiment, tmp_path):
    """Return the directory and the model of a finished run."""
    model, _ = pipeline.RunPipeline(experiment(), "train", str(tmp_path / "first")).run()
    return tmp_path / "first", model


def _start(params, model_dir):
    """Return the step and the weights after `initialize`, without training."""

    class Initialize(pipeline.Initialize):
        def __call__(self, ctx):
            super().__call__(ctx)
            seen.append((ctx.global_step, ctx.model.get_weights()))
            return "finalize"

    seen = []
    stages = {"initialize": Initialize}
    pipeline.RunPipeline(params, "train", str(model_dir), stages).run()
    return seen[0]


def _assert_equal(weights, others) -> None:
    for ours, theirs in zip(weights, others, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_log_of_a_new_run_reports_a_cold_start(experiment, log_of, tmp_path) -> None:
    assert _start(experiment(), tmp_path)[0] == 0
    assert "initialize: cold start" in log_of()


def test_log_of_a_resumed_run_states_its_first_step(experiment, log_of, first_run) -> None:
    model_dir, model = first_run
    step, weights = _start(experiment(trainer={"train_steps": 20}), model_dir)
    assert step == 8
    _assert_equal(weights, model.get_weights())
    assert "initialize: resumed at step 8 of 20" in log_of(model_dir)


@pytest.mark.usefixtures("log_as_train_py_does")
def test_log_of_an_evaluation_states_the_step_of_its_weights(experiment, first_run) -> None:
    model_dir, _ = first_run
    _run(experiment(), "eval", model_dir)
    log = (model_dir / "log.eval.txt").read_text()
    assert "initialize: restored the weights of step 8." in log


def test_init_checkpoint_initializes_the_weights_from_another_run(
    experiment, log_of, first_run, tmp_path
) -> None:
    model_dir, model = first_run
    params = experiment(task={"init_checkpoint": str(model_dir)})
    step, weights = _start(params, tmp_path / "second")
    assert step == 0
    _assert_equal(weights, model.get_weights())
    assert f"initialize: warm start from {model_dir}" in log_of(tmp_path / "second")


@pytest.fixture(params=["off", pytest.param("mirrored", marks=pytest.mark.slow)])
def averaged(request, experiment):
    """Return a function that builds an AdamW experiment with EMA, on one or two replicas."""
    devices = {"devices": ["CPU:0", "CPU:1"]} if request.param == "mirrored" else {}
    optimizer = {
        "optimizer": {"type": "adamw"},
        "ema": {"average_decay": 0.9},
        "learning_rate": {
            "type": "cosine",
            "cosine": {"initial_learning_rate": 0.1, "decay_steps": 8},
        },
    }

    def make(train_steps, **task):
        return experiment(
            task=task,
            trainer={"train_steps": train_steps, "optimizer_config": optimizer},
            runtime={"distribution_strategy": request.param, **devices},
        )

    return make


def _state(model_dir):
    path = tf.train.latest_checkpoint(str(model_dir))
    names = [name for name, _ in tf.train.list_variables(path) if "/_" in name or "bias" in name]
    return {name: tf.train.load_variable(path, name) for name in names}


def test_starting_from_the_weights_and_optimizer_of_a_checkpoint_equals_continuing_its_run(
    averaged, log_of, tmp_path
) -> None:
    def train(name, params):
        pipeline.RunPipeline(params, "train", str(tmp_path / name)).run()
        return _state(tmp_path / name)

    # An epoch has four steps, and all epochs read the examples in the same order.
    train("first", averaged(4))
    expected = train("whole", averaged(8))
    source = str(tmp_path / "first")
    found = train("hot", averaged(4, init_checkpoint=source, init_checkpoint_optimizer="all"))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    log = log_of(tmp_path / "hot")
    assert "initialize: hot start, with the optimizer," in log
    assert "Initialized the optimizer from" in log
    assert "ckpt-4: 8 variables matched" in log


def test_run_that_loads_only_the_optimizer_slots_counts_updates_from_zero(
    averaged, tmp_path
) -> None:
    pipeline.RunPipeline(averaged(4), "train", str(tmp_path / "first")).run()
    source = {"init_checkpoint": str(tmp_path / "first")}
    slots = averaged(0, **source, init_checkpoint_optimizer="slots")
    pipeline.RunPipeline(slots, "train", str(tmp_path / "second")).run()
    saved, loaded = _state(tmp_path / "first"), _state(tmp_path / "second")
    of_slots = [name for name in saved if "/_variables/" in name and saved[name].ndim]
    assert len(of_slots) == 6
    for name in of_slots:
        np.testing.assert_array_equal(loaded[name], saved[name], err_msg=name)
    assert [loaded[name] for name in saved if "_iterations/" in name] == [0, 0]


def test_checkpoint_in_the_model_directory_takes_precedence_over_init_checkpoint(
    experiment, first_run
) -> None:
    model_dir, model = first_run
    step, weights = _start(experiment(task={"init_checkpoint": "nowhere"}), model_dir)
    assert step == 8
    _assert_equal(weights, model.get_weights())


def test_initialize_stage_that_loads_its_own_weights_gets_an_unrestored_model(
    experiment, first_run
) -> None:
    class Initialize(pipeline.Initialize):
        def load(self, ctx):
            seen.append(ctx.global_step)
            for weight in ctx.model.weights:
                weight.assign(tf.ones(weight.shape))

    class Run(pipeline.Run):
        def train(self, ctx):
            seen.extend(weight.mean() for weight in ctx.model.get_weights())

    seen = []
    stages = {"initialize": Initialize, "run": Run}
    pipeline.RunPipeline(experiment(), "train", str(first_run[0]), stages).run()
    assert seen == [0, 1.0, 1.0]


def _checkpoints(model_dir) -> list[int]:
    return sorted(int(path.stem.split("-")[1]) for path in model_dir.glob("ckpt-*.index"))


def test_run_stage_that_overrides_train_replaces_only_the_training_loop(
    experiment, records, tmp_path
) -> None:
    class Run(pipeline.Run):
        def train(self, ctx):
            while ctx.global_step < ctx.params.trainer.train_steps:
                ctx.controller.train(ctx.global_step + 2)

    _, logs = _run(experiment(), "train_and_post_eval", tmp_path, run=Run)
    assert "validation_loss" in logs
    assert records(tmp_path, "validation") == [8]
    assert _checkpoints(tmp_path) == [2, 4, 6, 8]


def test_stage_in_the_docs_that_trains_in_several_calls_reaches_the_last_step(
    experiment, tmp_path
) -> None:
    page = (pathlib.Path(__file__).parents[2] / "docs" / "stages.md").read_text()
    (code,) = re.findall(r"```python\n([^`]*class Passes.*?)```", page, re.DOTALL)
    found = {"pipeline": pipeline}
    exec(code, found)
    params = experiment(
        task={"train_data": {"num_examples": 20}},
        trainer={"train_epochs": 10.0, "checkpoint_interval": 0},
    )
    _run(params, "train", tmp_path, run=found["Passes"])
    step = json.loads((tmp_path / "run.json").read_text())["global_step"]
    assert step == 25


def test_trainer_that_overrides_run_steps_replaces_only_the_inner_loop(
    experiment, records, tmp_path
) -> None:
    class Eager(base_trainer.Trainer):
        def run_steps(self, num_steps):
            iterator = iter(self.train_dataset)
            for _ in range(int(num_steps)):
                self.train_step(iterator)
            passes.append(int(num_steps))

    class Build(pipeline.Build):
        def make_trainer(self, ctx):
            return trainer_factory.create_trainer(
                ctx.params, ctx.task, train=True, evaluate=True, trainer_cls=Eager, model=ctx.model
            )

    passes = []
    _run(experiment(), "train_and_eval", tmp_path, build=Build)
    # `run_steps` may be called several times; signals are checked between the calls.
    assert sum(passes) == 8
    assert records(tmp_path, "validation") == [4, 8]
    assert _checkpoints(tmp_path) == [4, 8]


def test_two_trainers_that_share_a_model_may_train_alternately(
    experiment, log_of, tmp_path
) -> None:
    class Build(pipeline.Build):
        def make_runner(self, ctx):
            other = ctx.task.task_config.replace(slope=-3.0)
            ctx.extras["trainers"] = {
                "up": ctx.trainer,
                "down": trainer_factory.create_trainer(
                    ctx.params, type(ctx.task)(other), True, False, model=ctx.model
                ),
            }
            return super().make_runner(ctx)

    class Run(pipeline.Run):
        def train(self, ctx):
            for epoch in range(2):
                for name, trainer in ctx.extras["trainers"].items():
                    logs = trainer.train(tf.constant(ctx.params.trainer.steps_per_epoch))
                    losses.append(float(logs["training_loss"]))
                    logging.info("epoch %d of %s is done", epoch, name)
            ctx.controller.save_checkpoint()

    losses = []
    params = experiment(trainer={"train_epochs": 2.0})
    _run(params, "train", tmp_path, build=Build, run=Run)
    turns = [line.split("] ")[1] for line in log_of().splitlines() if "is done" in line]
    assert turns == [f"epoch {e} of {name} is done" for e in (0, 1) for name in ("up", "down")]
    # The trainers fit opposite slopes, so the second trainer starts with a higher loss.
    assert losses[1] > losses[0]
    assert _checkpoints(tmp_path) == [8]


def test_metric_summary_is_printed_only_after_a_successful_run(
    experiment, tmp_path, capsys
) -> None:
    class Failing(pipeline.Run):
        def train(self, ctx):
            super().train(ctx)
            raise ZeroDivisionError

    pipeline.RunPipeline(experiment(), "train", str(tmp_path / "a")).run()
    assert "training_loss" in capsys.readouterr().err
    with pytest.raises(ZeroDivisionError):
        pipeline.RunPipeline(experiment(), "train", str(tmp_path / "b"), {"run": Failing}).run()
    assert "training_loss" not in capsys.readouterr().err


@pytest.mark.parametrize("fails", [False, True])
def test_metric_files_are_complete_and_closed_when_finalize_runs(
    experiment, records, tmp_path, fails
) -> None:
    class Run(pipeline.Run):
        def train(self, ctx):
            super().train(ctx)
            if fails:
                raise ZeroDivisionError

    class Finalize(pipeline.Finalize):
        def __call__(self, ctx):
            links = [path.resolve() for path in pathlib.Path("/proc/self/fd").iterdir()]
            seen.extend(path.name for path in links if path.is_relative_to(tmp_path))
            seen.append(records(tmp_path, "validation"))

    seen = []
    params = experiment(trainer={"writers": ["jsonl", "tensorboard"]})
    stages = {"run": Run, "finalize": Finalize}
    with pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext():
        pipeline.RunPipeline(params, "train_and_eval", str(tmp_path), stages).run()
    assert seen == ["log.txt", [4, 8]]
    assert list((tmp_path / "validation").glob("events*"))
