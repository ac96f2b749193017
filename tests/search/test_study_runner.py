"""Whole studies, including killed studies, from the config to the results."""

import json
import os
import pathlib
import signal
import subprocess
import sys
from typing import Any

import pytest
import yaml

from official_lite import search
from official_lite.common import errors
from official_lite.core import config_definitions as cfg
from official_lite.search import storage
from tests import waiting
from tests.search import toys

ROOT = pathlib.Path(__file__).parents[2]
_STUDY = """
import sys
from official_lite import search
from tests.search import toys
search.run_study(toys.slow, toys.config(num_trials=20, num_workers=2), sys.argv[1])
"""


def _steps(study_dir: pathlib.Path) -> dict[str, list[str]]:
    paths = sorted(study_dir.glob("trials/*/steps.txt"))
    return {path.parent.name: path.read_text().split() for path in paths}


def _wait_for_steps(study_dir: pathlib.Path, count: int, process: subprocess.Popen[Any]) -> None:
    """Wait until `count` trials have written a step."""
    waiting.wait_for(lambda: len(_steps(study_dir)) >= count, alive=lambda: process.poll() is None)


def _has_ended(group: int) -> bool:
    """Return whether all processes of a group have ended."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.slow
def test_study_of_two_workers_survives_sigterm_and_sigkill(tmp_path) -> None:
    command = [sys.executable, "-c", _STUDY, str(tmp_path)]
    process = subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    _wait_for_steps(tmp_path, 3, process)
    process.terminate()
    assert "PreemptedError" in process.communicate(timeout=waiting.SECONDS)[1]
    at_the_end = _steps(tmp_path)
    waiting.wait_for(lambda: _has_ended(process.pid))
    assert _steps(tmp_path) == at_the_end
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    _wait_for_steps(tmp_path, 10, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    subprocess.run(command, cwd=ROOT, check=True)
    assert _steps(tmp_path) == {f"{n:04d}": [str(step) for step in range(10)] for n in range(20)}
    starts = [len(path.read_text().split()) for path in tmp_path.glob("trials/*/notes.txt")]
    assert sum(starts) <= 24
    study = search.run_study(toys.slow, toys.config(num_trials=20), str(tmp_path))
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 20
    whole = search.run_study(toys.parabola, toys.config(num_trials=20), str(tmp_path / "whole"))
    assert [trial.value for trial in study.trials] == [trial.value for trial in whole.trials]


def test_trial_still_running_in_another_process_is_named_in_the_log(tmp_path, caplog) -> None:
    def evaluate(trial: search.TrialRun) -> float:
        if trial.number == 1:
            search.run_study(toys.parabola, toys.config(), str(tmp_path))
            assert "still running these trials of the study: 1." in caplog.text
        return toys.parabola(trial)

    study = search.run_study(evaluate, toys.config(), str(tmp_path))
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 5


def test_search_worker_without_remaining_trials_succeeds_while_another_worker_runs_the_last_trial(
    tmp_path,
) -> None:
    def evaluate(trial: search.TrialRun) -> float:
        study = search.run_study(toys.parabola, toys.config(num_trials=1), str(tmp_path))
        assert [trial.state.name for trial in study.trials] == ["RUNNING"]
        return toys.parabola(trial)

    study = search.run_study(evaluate, toys.config(num_trials=1), str(tmp_path))
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"]


def test_top_k_file_lists_the_best_trials_in_ranking_order(tmp_path) -> None:
    config = toys.config(num_trials=12, top_k=3)
    search.run_study(toys.parabola, config, str(tmp_path))
    top = json.loads((tmp_path / "top_k.json").read_text())
    values = [entry["values"]["value"] for entry in top]
    assert values == sorted(values)
    assert len(top) == 3
    assert (tmp_path / top[0]["model_dir"] / "trial.json").exists()
    assert (top[0]["params"]["x"] - 2) ** 2 == pytest.approx(values[0])
    written = yaml.safe_load((tmp_path / storage.CONFIG_FILE).read_text())
    assert written["space"] == toys.SPACE
    # A finished study runs no further trials.
    assert len(search.run_study(lambda trial: 1 / 0, config, str(tmp_path)).trials) == 12


def test_study_without_any_complete_trial_raises_an_error(tmp_path) -> None:
    with pytest.raises(errors.OfficialLiteError, match=r"None of the 2 trials.*division by zero"):
        search.run_study(lambda trial: 1 / 0, toys.config(num_trials=2), str(tmp_path))


def test_study_in_the_directory_of_a_run_logs_a_warning(tmp_path, caplog) -> None:
    (tmp_path / "run.json").write_text('{"status": "done"}')
    for count in (1, 2):
        search.run_study(toys.parabola, toys.config(num_trials=count), str(tmp_path))
    assert caplog.text.count("already contains a run") == 1


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"space": {"trainer.train_stops": [1, 2]}}, "train_steps"),
        ({"space": {"trainer.train_steps": [1, -2]}}, "train_steps"),
        ({"space": {"trainer.train_steps": {"type": "float", "low": 0, "high": 1}}}, "int"),
        ({"metric": ""}, "metric"),
        ({"phases": [{"name": "a"}]}, "phases"),
        ({"evaluator": "tests.search.toys:fitt"}, "fit"),
    ],
)
def test_invalid_search_is_refused_before_any_file_is_written(
    block: dict, words: str, tmp_path
) -> None:
    whole = {"space": {"trainer.train_steps": [1, 2]}, "metric": "loss", "direction": "minimize"}
    phases = block.pop("phases", [])
    params = cfg.ExperimentConfig(search={**whole, **block}, phases=phases)
    with pytest.raises(errors.ConfigError, match=words):
        search.run_search(params, str(tmp_path / "study"))
    assert not (tmp_path / "study").exists()


def test_search_in_a_multi_worker_cluster_is_refused(tmp_path, monkeypatch) -> None:
    hosts = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}
    task = {"type": "worker", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": hosts, "task": task}))
    with pytest.raises(errors.ConfigValueError, match="a trial runs in one process"):
        search.run_search(cfg.ExperimentConfig(), str(tmp_path / "study"))
    assert not (tmp_path / "study").exists()


def _experiment(**fields) -> search.Experiment:
    trainer = search.FunctionalTrainer(lambda model: model)
    return search.Experiment(lambda choices: choices["x"], trainer, toys.SPACE, "random", **fields)


def test_experiment_exports_the_choices_of_its_best_trials(tmp_path) -> None:
    experiment = _experiment(direction="minimize")
    with pytest.raises(errors.ConfigValueError, match="`run`"):
        experiment.export_top_models()
    study = experiment.run(str(tmp_path), num_trials=4)
    assert experiment.export_top_models(1) == [{"x": study.best_value}]


def test_error_for_missing_optuna_names_the_extra_to_install() -> None:
    code = "import sys; sys.modules['optuna'] = None; import official_lite.search"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'official-lite[search]'" in done.stderr
