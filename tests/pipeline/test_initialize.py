import numpy as np
import pytest
import tensorflow as tf

from official_lite import pipeline


@pytest.fixture
def first_run(experiment, tmp_path):
    """Directory and model of a finished run."""
    model, _ = pipeline.RunPipeline(experiment(), "train", str(tmp_path / "first")).run()
    return tmp_path / "first", model


def _start(params, model_dir):
    """Step and weights after `initialize`; nothing is run."""

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


def test_fresh_run_starts_at_zero_and_says_so(experiment, log_of, tmp_path) -> None:
    assert _start(experiment(), tmp_path)[0] == 0
    assert "initialize: cold start" in log_of()


def test_resumed_run_starts_at_the_saved_step_and_says_so(experiment, log_of, first_run) -> None:
    model_dir, model = first_run
    step, weights = _start(experiment(trainer={"train_steps": 20}), model_dir)
    assert step == 8
    _assert_equal(weights, model.get_weights())
    assert "initialize: resumed at step 8 of 20" in log_of(model_dir)


def test_warm_start_reads_the_weights_of_another_run(
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
    """Makes an experiment with moments and moving averages, on one and on two replicas."""
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


def test_run_that_loads_the_optimizer_trains_as_the_first_run_would_have_continued(
    averaged, log_of, tmp_path
) -> None:
    def train(name, params):
        pipeline.RunPipeline(params, "train", str(tmp_path / name)).run()
        return _state(tmp_path / name)

    # Four steps are an epoch, and each epoch has the same order.
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


def test_run_that_loads_only_the_slots_counts_its_updates_from_zero(averaged, tmp_path) -> None:
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


def test_own_checkpoint_comes_before_that_of_another_run(experiment, first_run) -> None:
    model_dir, model = first_run
    step, weights = _start(experiment(task={"init_checkpoint": "nowhere"}), model_dir)
    assert step == 8
    _assert_equal(weights, model.get_weights())


def test_warm_start_under_two_replicas(experiment, first_run, tmp_path) -> None:
    model_dir, model = first_run
    params = experiment(
        task={"init_checkpoint": str(model_dir)},
        runtime={"distribution_strategy": "mirrored", "devices": ["CPU:0", "CPU:1"]},
    )
    _assert_equal(_start(params, tmp_path / "second")[1], model.get_weights())


def test_stage_that_loads_something_else_finds_nothing_restored(experiment, first_run) -> None:
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
