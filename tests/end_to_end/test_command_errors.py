"""A wrong command ends at once, names what is near, and writes nothing."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
GOOD = {"experiment": "vision/digits_cnn", "mode": "train"}


def _train(model_dir: pathlib.Path, *args: str, **flags: str) -> subprocess.CompletedProcess[str]:
    flags = {**GOOD, "model_dir": str(model_dir), **flags}
    command = [sys.executable, "-X", "importtime", str(ROOT / "train.py"), *args]
    command += [f"--{name}={value}" for name, value in flags.items() if value]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("args", "flags", "answer"),
    [
        ([], {"experiment": "vision/digit_cnn"}, "`vision/digits_cnn`"),
        ([], {"mode": "trian"}, "train_and_eval"),
        ([], {"experiment": ""}, "experiment"),
        (["--set=trainer.trian_steps=5"], {}, "`train_steps`"),
        (["--set=trainer.train_steps=abc"], {}, "abc"),
        (["--set=trainer.train_steps=1e6"], {}, "1000000"),
        (["--set=task.model.filters=[a]"], {}, "filters"),
        (["--set=trainer.optimizer_config.optimizer.type=admaw"], {}, "`adamw`"),
        (["--params_override=trainer.train_steps:5x,"], {}, "train_steps"),
        (["--import=no_such_package"], {}, "no_such_package"),
        (["--config_file=nowhere.yaml"], {}, "nowhere.yaml"),
    ],
)
def test_wrong_command_exits_with_2_before_tensorflow_is_imported(
    tmp_path: pathlib.Path, args: list[str], flags: dict[str, str], answer: str
) -> None:
    model_dir = tmp_path / "run"
    result = _train(model_dir, *args, **flags)
    said = [line for line in result.stderr.splitlines() if not line.startswith("import time:")]
    assert result.returncode == 2, said
    assert answer in "\n".join(said)
    assert "Traceback" not in result.stderr
    assert "tensorflow" not in "".join(result.stderr.splitlines(True)[: -len(said)])
    assert not model_dir.exists()


def test_duplicate_key_in_yaml_names_file_and_line(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "twice.yaml"
    file.write_text("trainer:\n  train_steps: 1\n  train_steps: 2\n")
    result = _train(tmp_path / "run", config_file=str(file))
    assert result.returncode == 2
    assert "twice.yaml" in result.stderr
    assert "train_steps" in result.stderr


def test_directory_that_is_a_file_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "run").touch()
    assert _train(tmp_path / "run").returncode == 2


def test_print_config_is_yaml_that_can_be_fed_back(tmp_path: pathlib.Path) -> None:
    first = _train(tmp_path / "run", "--print_config", "--set=trainer.train_steps=7")
    assert first.returncode == 0
    file = tmp_path / "printed.yaml"
    file.write_text(first.stdout)
    second = _train(tmp_path / "run", "--print_config", config_file=str(file))
    assert second.stdout == first.stdout
    assert "train_steps: 7" in second.stdout
    assert not (tmp_path / "run").exists()
