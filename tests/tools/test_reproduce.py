import json
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Iterator

import pytest
from absl import flags as absl_flags
from absl.testing import flagsaver

import registry_imports  # noqa: F401  (imported for its registrations)
from benchmarks import chaos
from official_lite.common import flags
from official_lite.config import gin_config, parsing
from official_lite.execution import execution_record
from official_lite.run import model_dir_lock
from official_lite.tools import __main__ as tools
from tests import commands

TRAIN = ["--experiment=vision/digits_mlp", "--mode=train", "--set=trainer.train_steps=40"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    model_dir = tmp_path_factory.mktemp("reproduce") / "run"
    assert commands.run(["train.py", *TRAIN, f"--model_dir={model_dir}"]).returncode == 0
    return model_dir


@pytest.mark.slow
def test_reproduced_run_equals_the_recorded_run_bit_for_bit(
    run: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    again = tmp_path / "again"
    arguments = ["-m", "official_lite.tools", "reproduce", str(run), f"--model_dir={again}"]
    done = commands.run(arguments)
    assert done.returncode == 0, done.stderr
    assert chaos.differences(chaos.what_is_left(run), chaos.what_is_left(again)) == []
    # Both the printed and the recorded command resume the reproduced run.
    assert f"--params_override={run}/params.yaml" in done.stderr
    recorded = json.loads((again / "run.json").read_text())["argv"]
    assert f"--model_dir={again}" in recorded


def test_reproducing_into_a_nonempty_or_busy_directory_fails(
    run: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tools.main(["reproduce", str(run), f"--model_dir={run}"]) == 2
    assert "is not empty: it contains" in capsys.readouterr().err
    with model_dir_lock.ModelDirLock(str(tmp_path)):
        assert tools.main(["reproduce", str(run), f"--model_dir={tmp_path}"]) == 6
    assert f"Another run is training in {tmp_path}" in capsys.readouterr().err


def test_reproduced_run_uses_the_recorded_execution_mode_unless_a_flag_sets_the_mode(
    run: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, command: started.append(command) or sys.exit(0))
    recorded = execution_record.ExecutionRecord(execution="xla", reason="faster", train_steps=40)
    chose, again = tmp_path / "chose", tmp_path / "again"
    shutil.copytree(run, chose)
    execution_record.save(recorded, str(chose))
    flag = "--set=runtime.execution=graph"
    with pytest.raises(SystemExit):
        tools.main(["reproduce", str(chose), f"--model_dir={again}", flag])
    assert [each for each in started[0] if "execution" in each] == [flag]
    assert execution_record.load(str(again)) == recorded
    # The config of a finished run names the mode, but not the mode of evaluations.
    other = tmp_path / "other"
    with pytest.raises(SystemExit):
        tools.main(["reproduce", str(chose), f"--model_dir={other}"])
    execution = [each for each in started[1] if "execution" in each]
    assert execution == ["--set=runtime.execution=auto"]
    assert execution_record.load(str(other)) == recorded


@pytest.fixture
def gin_run(run: pathlib.Path, tmp_path: pathlib.Path) -> Callable[[str], str]:
    """Return a function that copies the run as if it had been started with a gin binding."""

    def copy(binding: str) -> str:
        path = tmp_path / "gin_run"
        shutil.copytree(run, path)
        record = json.loads((path / "run.json").read_text())
        record["argv"].append(f"--gin_params={binding}")
        (path / "run.json").write_text(json.dumps(record))
        return str(path)

    return copy


@pytest.fixture
def absl() -> Iterator[absl_flags.FlagValues]:
    flags.define_flags()
    with flagsaver.flagsaver():
        yield absl_flags.FLAGS


def test_reproduced_run_keeps_the_fields_that_its_command_line_set_over_gin(
    gin_run: Callable[[str], str],
    absl: absl_flags.FlagValues,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, command: started.append(command) or sys.exit(0))
    binding = "trainer/params.train_steps = 100"
    again = f"--model_dir={tmp_path / 'again'}"
    with pytest.raises(SystemExit):
        tools.main(["reproduce", gin_run(binding), again, f"--gin_params={binding}"])
    absl(started[0][3:])
    gin_config.parse_gin_flags(absl)
    params = parsing.parse_configuration(absl, print_return=False)
    assert params.trainer.train_steps == 40


def test_reproducing_a_run_with_gin_bindings_of_functions_requires_the_trust_flag(
    gin_run: Callable[[str], str],
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, command: started.append(command) or sys.exit(0))
    binding = "create_trainer.trainer_cls = @Trainer"
    reproduce = ["reproduce", gin_run(binding), f"--model_dir={tmp_path / 'again'}"]
    assert tools.main([*reproduce, f"--gin_params={binding}"]) == 2
    assert "If you trust the run" in capsys.readouterr().err
    missing = f"--gin_file={tmp_path / 'missing.gin'}"
    assert tools.main([*reproduce, f"--gin_params={binding[:-8]}", missing]) == 2
    assert "--trust" not in capsys.readouterr().err
    with pytest.raises(SystemExit):
        tools.main([*reproduce, "--trust"])
    assert f"--gin_params={binding}" in started[0]
    assert "--safe_config" not in started[0]


def test_reproducing_a_run_with_an_edited_config_prints_a_warning(
    run: pathlib.Path,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, command: started.append(command) or sys.exit(0))
    edited = tmp_path / "edited"
    shutil.copytree(run, edited)
    with (edited / "params.yaml").open("a") as file:
        file.write("# edited\n")
    with pytest.raises(SystemExit):
        tools.main(["reproduce", str(edited), f"--model_dir={tmp_path / 'again'}"])
    said = capsys.readouterr().err
    assert "Warning: config differs from the record: params.yaml: recorded sha256" in said
    assert "--safe_config" in started[0]
