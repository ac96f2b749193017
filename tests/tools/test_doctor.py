import dataclasses
import json
import pathlib

import pytest
import tensorflow as tf

from official_lite.tools import __main__ as tools
from official_lite.tools import smoke_run

LOOK = ("doctor", "--skip_smoke_run", "--json")


def _checks(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    return {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}


def test_doctor_shows_versions_devices_strategy_and_disk_space(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tools.main([*LOOK, f"--model_dir={tmp_path / 'new' / 'run'}"]) == 0
    checks = _checks(capsys)
    assert (checks["tensorflow"]["value"], checks["tensorflow"]["ok"]) == (tf.__version__, True)
    assert checks["strategy"]["value"].startswith("MirroredStrategy with ")
    assert {"CPUs", "memory", "disk", "CPU:0"} <= checks.keys()
    assert checks["TF_CONFIG"]["value"] == "not set: one process"
    assert not (tmp_path / "new").exists()


def test_doctor_shows_the_cluster_and_reports_an_invalid_tf_config(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = {"worker": ["a:1", "b:1"], "ps": ["c:1"]}
    task = {"cluster": hosts, "task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(task))
    assert tools.main([*LOOK]) == 0
    assert _checks(capsys)["TF_CONFIG"]["value"] == "worker 1 of 2 worker, 1 ps"
    monkeypatch.setenv("TF_CONFIG", "{")
    assert tools.main([*LOOK]) == 1
    checks = json.loads(capsys.readouterr().out)["checks"]
    (failed,) = (check for check in checks if check["section"] == "cluster")
    assert failed["ok"] is False
    assert "TF_CONFIG is invalid" in failed["value"]


def test_failed_smoke_run_is_reported_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(smoke_run, "run", lambda: 1 / 0)
    assert tools.main(["doctor"]) == 1
    said = capsys.readouterr()
    assert "ZeroDivisionError: division by zero" in said.out
    assert "Found problems" in said.out
    assert "Traceback" in said.err
    result = smoke_run.SmokeResult(
        steps=150, resumed_from=100, seconds=2.0, first_loss=9.0, last_loss=0.1
    )
    monkeypatch.setattr(smoke_run, "run", lambda: result)
    assert tools.main(["doctor"]) == 0
    assert "resumed from step 100" in capsys.readouterr().out


def test_smoke_run_reduces_the_loss_and_resumes_from_its_checkpoint() -> None:
    result = smoke_run.run()
    assert (result.steps, result.resumed_from) == (150, 100)
    assert result.is_good
    assert not dataclasses.replace(result, resumed_from=0).is_good
    assert not dataclasses.replace(result, last_loss=result.first_loss).is_good
