import os

import pytest

from experiments.vision.digits import configs
from official_lite.common import errors
from official_lite.tools.tuning import trial_training


def test_training_is_built_as_configured_but_writes_nothing(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    params = configs.digits_mlp()
    params.override({"trainer": {"hooks": ["no_such_hook"]}, "task": {"model": {"units": [4]}}})
    seen = []

    def run(ctx):
        seen.append((ctx.global_step, ctx.trainer.global_batch_size, ctx.runner.trains))
        seen.append((ctx.model_dir, os.path.isdir(ctx.model_dir)))

    trial_training.train(
        params, run, trainer={"train_steps": 7}, task={"train_data": {"global_batch_size": 8}}
    )
    directory, existed = seen[1]
    assert seen[0] == (0, 8, True)
    assert (directory.startswith(str(tmp_path)), existed) == (True, True)
    assert os.listdir(tmp_path) == []
    assert capsys.readouterr().out == ""
    assert params.trainer.train_steps == 600


def test_error_of_the_training_comes_through(tmp_path):
    def run(ctx):
        raise errors.DataError("no data")

    with pytest.raises(errors.DataError, match="no data"):
        trial_training.train(configs.digits_mlp(), run, trainer={})


def test_experiment_with_phases_is_refused():
    params = configs.digits_mlp()
    params.phases = [{"name": "one"}]
    with pytest.raises(errors.ConfigValueError, match="Pass the model directory of one phase"):
        trial_training.train(params, lambda ctx: None, trainer={})
