import json

import pytest

from official_lite import pipeline
from official_lite.common import errors

TWO = [
    {"name": "first", "mode": "train", "overrides": {"trainer.train_steps": 4}},
    {"name": "second", "mode": "train_and_eval", "init_from": "previous"},
]


def _run(params, model_dir, mode="train", **stages):
    return pipeline.RunPipeline(params, mode, str(model_dir), stages).run()


def _global_step(model_dir) -> int:
    return json.loads((model_dir / "run.json").read_text())["global_step"]


@pytest.mark.parametrize(
    "overrides",
    [
        {"pipeline": {"run": "no_such_stage"}},
        {"trainer": {"hooks": ["early_stoping"]}},
        {"trainer": {"writers": ["jsnl"]}},
        {"trainer": {"name": "no_such_trainer"}},
    ],
)
def test_wrong_name_is_found_before_anything_is_written(experiment, tmp_path, overrides) -> None:
    with pytest.raises(errors.UnknownNameError):
        pipeline.RunPipeline(experiment(**overrides), "train", str(tmp_path / "run"))
    with pytest.raises(errors.UnknownNameError, match="trian"):
        pipeline.RunPipeline(experiment(), "trian", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("mode", "evaluated"),
    [("train", False), ("train_and_eval", True), ("train_and_post_eval", True)],
)
def test_model_and_metrics_come_back(experiment, tmp_path, mode, evaluated) -> None:
    model, logs = _run(experiment(), tmp_path, mode)
    assert model.built
    assert ("validation_loss" in logs) == evaluated


def test_every_checkpoint_gets_its_evaluation(experiment, records, tmp_path) -> None:
    params = experiment(trainer={"train_steps": 12})
    _run(params, tmp_path)
    _run(params, tmp_path, "continuous_eval")
    assert records(tmp_path, "validation") == [4, 8, 12]


def test_phases_run_in_order_and_hand_on_weights(experiment, records, log_of, tmp_path) -> None:
    class Initialize(pipeline.Initialize):
        def __call__(self, ctx):
            super().__call__(ctx)
            weights.append(ctx.model.get_weights()[0].tolist())

    weights = []
    _, logs = _run(experiment(phases=TWO), tmp_path, initialize=Initialize)
    assert _global_step(tmp_path / "first") == 4
    assert _global_step(tmp_path / "second") == 8
    assert records(tmp_path / "second", "validation") == [4, 8]
    assert not (tmp_path / "run.json").exists()
    assert "validation_loss" in logs
    assert f"warm start from {tmp_path / 'first'}" in log_of(tmp_path / "second")
    assert weights[0] != weights[1]


def test_later_phase_sees_the_models_and_metrics_of_earlier_ones(experiment, tmp_path) -> None:
    class Run(pipeline.Run):
        def __call__(self, ctx):
            super().__call__(ctx)
            counts.append([phase.model.count_params() for phase in ctx.phases.values()])
            names.append((ctx.phase, ctx.model.name, [*ctx.logs]))

    counts, names = [], []
    phases = [{"name": name, "mode": "train_and_post_eval"} for name in "abc"]
    _run(experiment(phases=phases), tmp_path, run=Run)
    assert counts == [[], [3], [3, 3]]
    assert [name for name, *_ in names] == ["a", "b", "c"]
    # What Keras counts up begins anew.
    assert names[1][1:] == names[2][1:]


def test_finished_phase_is_left_out_and_an_unfinished_one_goes_on(
    experiment, recorders, log_of, tmp_path
) -> None:
    calls, stages = recorders

    class Run(stages["run"]):
        def train(self, ctx):
            if ctx.phase == "second":
                raise ZeroDivisionError
            return super().train(ctx)

    with pytest.raises(ZeroDivisionError):
        _run(experiment(phases=[*TWO, {"name": "third"}]), tmp_path, run=Run)
    assert not (tmp_path / "third").exists()
    calls.clear()
    _run(experiment(phases=TWO), tmp_path, **stages)
    assert calls == list(pipeline.STAGES)
    calls.clear()
    model, logs = _run(experiment(phases=TWO), tmp_path, **stages)
    assert (model, logs, calls) == (None, {}, [])


def test_phase_whose_epochs_only_the_data_know_is_left_out_when_finished(
    experiment, recorders, tmp_path
) -> None:
    calls, stages = recorders
    phases = [{"name": "only", "overrides": {"trainer.train_epochs": 1.0}}]
    _run(experiment(phases=phases), tmp_path, **stages)
    assert _global_step(tmp_path / "only") == 4
    calls.clear()
    _run(experiment(phases=phases), tmp_path, **stages)
    assert calls == []
    longer = [{"name": "only", "overrides": {"trainer.train_epochs": 2.0}}]
    _run(experiment(phases=longer), tmp_path, **stages)
    assert _global_step(tmp_path / "only") == 8


def test_phases_share_one_strategy_of_two_replicas(experiment, tmp_path) -> None:
    class Build(pipeline.Build):
        def make_strategy(self, ctx):
            strategy = super().make_strategy(ctx)
            seen.append((strategy, ctx.engine))
            return strategy

    seen = []
    devices = {"distribution_strategy": "mirrored", "devices": ["CPU:0", "CPU:1"]}
    _run(experiment(phases=TWO, runtime=devices), tmp_path, build=Build)
    assert [engine for _, engine in seen] == [pipeline.Engine.LOCAL_CLUSTER] * 2
    assert seen[0][0] is seen[1][0]


def test_phases_that_want_different_strategies_fail_before_anything_runs(
    experiment, tmp_path
) -> None:
    other = {"name": "other", "overrides": {"runtime.distribution_strategy": "one_device"}}
    with pytest.raises(errors.ConfigValueError, match=r"runtime.distribution_strategy.*one_device"):
        _run(experiment(phases=[{"name": "first"}, other]), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    seeded = {"name": "other", "overrides": {"runtime.seed": 5}}
    pipeline.RunPipeline(experiment(phases=[{"name": "first"}, seeded]), "train", str(tmp_path))
