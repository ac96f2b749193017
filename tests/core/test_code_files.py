import pathlib
import sys

import pytest

from experiments.vision.digits import configs
from official_lite.core import config_definitions as cfg
from official_lite.core import exp_factory, preflight, task_factory


def test_code_is_that_of_the_framework_and_of_the_experiment() -> None:
    lines = preflight.list_code(configs.digits_mlp())
    names = [line.partition(" ")[0] for line in lines]
    assert names == sorted(names)
    assert {"official_lite/core/preflight.py", "experiments/vision/digits/task.py"} <= set(names)
    assert lines == preflight.list_code(exp_factory.get_exp_config("vision/digits_cnn"))


def test_change_of_a_file_changes_its_line(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.py"
    file.write_text("SHIFT = 1\n")
    task = type("MyTask", (), {"__module__": "mine"})
    params = cfg.ExperimentConfig(task=type("MyConfig", (cfg.TaskConfig,), {})())
    monkeypatch.setitem(sys.modules, "mine", type(sys)("mine"))
    sys.modules["mine"].__file__ = str(file)
    task_factory.register_task_cls(type(params.task))(task)
    before = preflight.list_code(params)
    file.write_text("SHIFT = 2\n")
    changed = set(preflight.list_code(params)) ^ set(before)
    assert [line.partition(" ")[0] for line in sorted(changed)] == ["mine.py", "mine.py"]


def test_link_to_nowhere_and_file_that_can_not_be_read_are_no_error(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".#task.py").symlink_to("me@host.1")  # Emacs locks `task.py` this way.
    (tmp_path / "lost.py").symlink_to("/proc/self/mem")  # Its first byte can't be read.
    package = type(sys)("my_package")
    package.__path__ = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, "my_package", package)
    task = type("MyTask", (), {"__module__": "my_package"})
    params = cfg.ExperimentConfig(task=type("MyConfig", (cfg.TaskConfig,), {})())
    task_factory.register_task_cls(type(params.task))(task)
    lines = preflight.list_code(params)
    assert [line for line in lines if line.startswith("my_package")] == [
        "my_package/lost.py unreadable"
    ]
