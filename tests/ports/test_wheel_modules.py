"""Modules of the Model Garden's wheel are ported by `tools port` and train without manual work."""

import json
import pathlib

import pytest

from official_lite.tools import __main__ as tools
from tests import commands
from tests.experiments import evaluations
from tests.model_garden.test_wheel import needs_wheel

PROJECT = pathlib.Path(__file__).parent / "projects" / "wheel_modules.py.txt"


@pytest.fixture(scope="module")
def ported(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("wheel_modules")
    (folder / "wheel_modules.py").write_text(PROJECT.read_text())
    assert tools.main(["port", str(folder), "--alongside=model_garden", "--write"]) == 0
    return folder


@needs_wheel
@pytest.mark.slow
@pytest.mark.parametrize("module", ["resnet", "bert_encoder", "image_classification"])
def test_model_garden_module_ported_by_the_tool_trains_without_manual_changes(
    ported: pathlib.Path, tmp_path: pathlib.Path, module: str
) -> None:
    _run(ported, module, tmp_path)
    if module == "image_classification":
        _run(ported, module, tmp_path, "eval")
        evaluations.assert_recorded_as_in_training(tmp_path)


def _run(ported: pathlib.Path, *args: str | pathlib.Path) -> None:
    done = commands.run([ported / "wheel_modules.py", *args])
    assert done.returncode == 0, done.stderr[-6000:]


@needs_wheel
@pytest.mark.slow
def test_porting_the_ported_wheel_modules_again_changes_no_file(
    ported: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tools.main(["port", str(ported), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [file["path"] for file in report["files"] if file["changed"]] == []
    assert len(report["files"]) > 50
