"""Tests of `python -m official_lite.tools export`."""

import json
import os

import pytest

from official_lite.modeling import model_export
from official_lite.tools import __main__ as tools
from official_lite.tools import export

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_export_command_exports_the_latest_checkpoint_and_compares_the_outputs(trained, capsys):
    assert tools.main(["export", trained, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["path"] == os.path.join(trained, "export", "6")
    assert row["checkpoint"] == os.path.join(trained, "ckpt-6")
    assert row["max_difference"] < 1e-5


def test_export_command_fails_if_the_outputs_differ_by_more_than_the_tolerance(
    trained, capsys, tmp_path
):
    arguments = [trained, f"--output={tmp_path}", "--tolerance=-1"]
    assert tools.main(["export", *arguments]) == 1
    said = capsys.readouterr()
    assert f"{tmp_path}/6" in said.out
    assert "The outputs differ from the model's" in said.err


def test_export_check_measures_metrics_and_latency_of_the_model_and_its_export(
    trained, capsys, tmp_path
):
    arguments = [trained, f"--output={tmp_path}", "--check", "--format=litert", "--json"]
    assert tools.main(["export", *arguments]) == 0
    model, exported = json.loads(capsys.readouterr().out)
    assert (model["format"], exported["format"]) == ("model", "litert")
    assert model["latency_ms"] > 0
    assert exported["latency_ms"] > 0
    assert exported["metrics"] == pytest.approx(model["metrics"], abs=1e-5)


def test_export_command_supports_every_format():
    assert sorted(export._FORMATS) == sorted(model_export.FORMATS)
