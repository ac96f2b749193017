import json
import pathlib
import subprocess
import sys

import pytest

from official_lite.tools import __main__ as tools
from tests import commands


def test_experiments_list_shows_names_and_summaries_without_tensorflow() -> None:
    code = (
        "import sys\n"
        "from official_lite.tools import __main__ as tools\n"
        "assert tools.main(['experiments', 'list', 'vision/*', '--json']) == 0\n"
        "assert not {'tensorflow', 'keras', 'numpy'} & set(sys.modules)\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=commands.ROOT, check=True)
    listed = {each["name"]: each for each in json.loads(done.stdout)}
    assert all(name.startswith("vision/") for name in listed)
    assert listed["vision/digits_mlp"] == {
        "name": "vision/digits_mlp",
        "summary": "Return a network of two dense layers that trains in a few seconds, for "
        "experimenting.",
        "module": "experiments.vision.digits.configs",
    }


def test_experiments_list_accepts_part_of_a_name_and_can_print_only_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert tools.main(["experiments", "list", "digits_", "--names"]) == 0
    names = capsys.readouterr().out.splitlines()
    assert {"vision/digits_cnn", "vision/digits_mlp"} <= {*names}
    assert all("digits_" in name for name in names)


def test_experiments_show_prints_the_task_the_optimizer_and_the_train_steps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert tools.main(["experiments", "show", "vision/digits_mlp"]) == 0
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line)
    assert shown["train_steps"] == "600"
    assert shown["task_config"] == "experiments.vision.digits.configs:DigitsConfig"
    assert shown["readme"] == "experiments/vision/digits/README.md"
    assert tools.main(["experiments", "show", "vision/digits_mlp", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["optimizer"], document["learning_rate"]) == ("adamw", "cosine")
    assert document["config"]["trainer"]["train_steps"] == 600


def test_experiment_registered_in_a_file_is_shown_with_the_path_of_the_file(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "shown.py"
    file.write_text(
        "from official_lite.core import config_definitions as cfg, exp_factory\n"
        "class ShownConfig(cfg.TaskConfig): ...\n"
        "@exp_factory.register_config_factory('tests/shown')\n"
        "def shown():\n"
        "    return cfg.ExperimentConfig(task=ShownConfig())\n"
    )
    assert tools.main(["experiments", "show", "tests/shown", f"--import={file}"]) == 0
    said = capsys.readouterr().out
    assert f"{file}:ShownConfig" in said
    assert "official_lite_plugin" not in said
