import json
import os
import pathlib
import sys

import pytest

from official_lite.common import errors
from official_lite.tools import __main__ as tools
from tests import commands

TRAIN = ["--experiment=vision/digits_mlp", "--mode=train", "--set=trainer.train_steps=40"]


@pytest.mark.slow
def test_predict_command_writes_no_row_twice_and_refuses_a_changed_config(
    tmp_path: pathlib.Path,
) -> None:
    run, output = tmp_path / "run", tmp_path / "predictions"
    assert commands.run(["train.py", *TRAIN, f"--model_dir={run}"]).returncode == 0
    predict = ["-m", "official_lite.tools", "predict", str(run), f"--output={output}"]
    predict.append("--format=parquet")
    for new_rows in (360, 0):
        done = commands.run(predict)
        assert done.returncode == 0, done.stderr
        counts = json.loads(done.stdout.splitlines()[-1])
        assert (counts["rows"], counts["shards"], counts["new_rows"]) == (360, 1, new_rows)
    assert sorted(path.name for path in output.iterdir()) == [
        "_progress.json",
        "predictions-00000.parquet",
    ]
    # A config with another seed may belong to another model.
    done = commands.run([*predict, "--set=runtime.seed=5"])
    assert done.returncode == errors.ExitCode.CONFIG
    assert "runtime.seed: 0 -> 5" in done.stderr


def test_predict_starts_the_recorded_training_command_in_predict_mode(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, command: started.append(command) or sys.exit(0))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("")
    record = {"mode": "train", "argv": ["train.py", "--experiment=vision/digits_mlp"]}
    (tmp_path / "run.json").write_text(json.dumps(record))
    with pytest.raises(SystemExit):
        tools.main(["predict", str(tmp_path), "--output=here", "--checkpoint=best"])
    assert started[0][4:] == [
        "--experiment=vision/digits_mlp",
        "--mode=predict",
        f"--params_override={tmp_path}/params.yaml",
        "--safe_config",
        f"--model_dir={tmp_path}",
        "--set=prediction.checkpoint=best",
        f"--set=prediction.output_dir={tmp_path}/here",
    ]
