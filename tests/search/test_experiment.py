"""A study put together from NNI's four parts."""

import subprocess
import sys

import pytest

from official_lite import search
from official_lite.common import errors
from tests.search import toys


def _experiment(**fields) -> search.Experiment:
    trainer = search.FunctionalTrainer(lambda model: model)
    return search.Experiment(lambda choices: choices["x"], trainer, toys.SPACE, "random", **fields)


def test_loss_is_not_searched_upwards_by_mistake(tmp_path) -> None:
    with pytest.raises(errors.ConfigValueError, match="direction"):
        _experiment().run(str(tmp_path))


def test_choices_of_the_best_trials_come_out(tmp_path) -> None:
    experiment = _experiment(direction="minimize")
    study = experiment.run(str(tmp_path), num_trials=4)
    assert experiment.export_top_models(1) == [{"x": study.best_value}]


def test_models_are_there_after_the_run() -> None:
    with pytest.raises(errors.ConfigValueError, match="Call `run` first"):
        _experiment(direction="minimize").export_top_models()


def test_without_optuna_the_extra_is_named() -> None:
    code = "import sys; sys.modules['optuna'] = None; import official_lite.search"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'official-lite[search]'" in done.stderr
