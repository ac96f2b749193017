"""Tests of the benchmark of steps, whose contestants must train the same models."""

import importlib.util
import itertools
import json
import pathlib
import sys

import pytest

from benchmarks import environments, report
from benchmarks.steps import __main__ as benchmark
from benchmarks.steps import models

# Contestants that run in the environment of these tests.
OWN = ("official_lite_trainer", "keras_fit", "keras_fit_1000_no_jit", "tf_graph")


@pytest.mark.parametrize("name", benchmark.CONTESTANTS)
def test_each_program_in_the_step_benchmark_has_an_existing_module_environment_and_models(
    name: str,
) -> None:
    contestant = benchmark.CONTESTANTS[name]
    assert importlib.util.find_spec(f"benchmarks.steps.{contestant.module}") is not None
    assert contestant.environment in environments.REQUIREMENTS
    assert set(contestant.models) <= set(models.MODELS)


def test_each_program_in_the_step_benchmark_is_described_in_one_unique_line() -> None:
    lines = benchmark.describe(benchmark.CONTESTANTS).splitlines()[2:]
    assert [line.split("`")[1] for line in lines] == list(benchmark.CONTESTANTS)
    # Two equal lines would hide what distinguishes their contestants.
    assert len({line.split(":", 1)[1] for line in lines}) == len(lines)


@pytest.mark.parametrize("model", models.MODELS)
def test_step_benchmark_measures_keras_fit_with_every_jit_compile_and_steps_per_execution_setting(
    model: str,
) -> None:
    found = {
        ("--jit_compile=off" not in contestant.arguments, contestant.arguments[0])
        for contestant in benchmark.CONTESTANTS.values()
        if contestant.module == "keras_worker" and not contestant.variables
        if model in contestant.models
    }
    steps = ("--steps_per_execution=1", f"--steps_per_execution={models.STEPS_PER_REPORT}")
    assert found == set(itertools.product((True, False), steps))


@pytest.mark.slow
def test_all_programs_of_official_lite_in_the_step_benchmark_end_with_equal_losses(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--models=tiny_mlp", "--steps=100", "--rounds=1", "--warmup=1"]
    arguments = [*arguments, "--contestants", *OWN, "--results_dir", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["steps", *arguments])
    benchmark.main()
    found = json.loads((tmp_path / "steps.json").read_text())["measurements"]["tiny_mlp"]
    losses = {name: found["rounds"][name][-1]["loss"] for name in OWN}
    assert losses == pytest.approx(dict.fromkeys(OWN, losses["tf_graph"]), rel=1e-3)
    page = report.render(tmp_path)
    assert "ends with a loss of" not in page
    for name in OWN:
        assert f"\n* `{name}`: {benchmark.CONTESTANTS[name].given}.\n" in page


def test_note_below_the_benchmark_table_names_a_program_whose_final_loss_differs() -> None:
    answers = {
        name: [{"seconds_per_step": 1.0, "peak_memory_mb": 1.0, "loss": loss, "metric": 1.0}]
        for name, loss in (("official_lite", 0.5), ("tf_graph", 0.5), ("torch", 0.6))
    }
    warmups = {name: [{"seconds": 1.0}] for name in answers}
    table = benchmark.tabulate(models.MODELS["tiny_mlp"], answers, warmups, 10, 1)
    assert table.note == "torch ends with a loss of 0.6, others with 0.5."
