import gc
import pathlib
import subprocess
import sys

import pytest

from official_lite.common import app

ROOT = pathlib.Path(__file__).parents[2]

SCRIPT = """
from absl import flags
from official_lite.common import app, errors
flags.DEFINE_integer("steps", None, "")
def main(argv):
    {body}
app.run(main)
"""


def _run(tmp_path: pathlib.Path, body: str, *args: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(body=body))
    command = [sys.executable, str(script), *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("error", "code"),
    [("ConfigValueError", 2), ("DataError", 3), ("DivergedError", 4), ("PreemptedError", 42)],
)
def test_framework_error_prints_one_line_and_exits_with_its_exit_code(
    tmp_path: pathlib.Path, error: str, code: int
) -> None:
    result = _run(tmp_path, f"raise errors.{error}('what was wrong')")
    assert result.returncode == code
    assert result.stderr == f"{error}: what was wrong\n"


def test_unexpected_exception_shows_the_users_line_and_exits_with_1(tmp_path: pathlib.Path) -> None:
    result = _run(tmp_path, "1 / 0")
    assert result.returncode == 1
    assert "ZeroDivisionError" in result.stderr
    assert "absl/app.py" not in result.stderr
    *_, last = result.stderr.splitlines()
    script = tmp_path / "script.py"
    assert last == f"ZeroDivisionError: division by zero ({script}:6, in `main`)"


def test_verbosity_flag_shows_the_full_traceback(tmp_path: pathlib.Path) -> None:
    result = _run(tmp_path, "1 / 0", "--verbosity=1")
    assert "absl/app.py" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("ZeroDivisionError: division by zero (")


@pytest.mark.parametrize("argument", ["--steps=many", "--stepz=1"])
def test_unknown_flag_or_invalid_value_exits_with_the_config_error_code(
    tmp_path: pathlib.Path, argument: str
) -> None:
    result = _run(tmp_path, "pass", argument)
    assert result.returncode == 2
    assert "steps" in result.stderr


def test_keyboard_interrupt_exits_with_130_and_no_traceback(tmp_path: pathlib.Path) -> None:
    result = _run(tmp_path, "raise KeyboardInterrupt")
    assert result.returncode == 130
    assert "Traceback" not in result.stderr


def test_process_exits_with_zero_whatever_main_returns(tmp_path: pathlib.Path) -> None:
    assert _run(tmp_path, "return 5", "--steps=1").returncode == 0


@pytest.fixture
def thawed():
    """Unfreeze, for one test, the objects that `conftest.py` froze for all tests."""
    gc.unfreeze()
    yield
    gc.freeze()


def test_objects_created_by_imports_are_excluded_from_garbage_collection(thawed):
    with app.gc_frozen_imports():
        made = [[] for _ in range(1000)]
        assert not gc.isenabled()
    assert gc.isenabled()
    assert not any(other is made for other in gc.get_objects())
    assert gc.get_freeze_count() > 1000


def test_garbage_collection_is_enabled_again_after_an_import_error():
    with pytest.raises(ImportError), app.gc_frozen_imports():
        raise ImportError("no such module")
    assert gc.isenabled()


def test_imports_leave_garbage_collection_off_if_it_was_already_off():
    gc.disable()
    try:
        with app.gc_frozen_imports():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.slow
def test_train_command_excludes_tensorflow_from_garbage_collection(tmp_path):
    module = tmp_path / "at_the_end.py"
    module.write_text(
        "import atexit, gc, sys\n"
        "atexit.register(lambda: print('frozen:', gc.get_freeze_count() > 200_000))\n"
        "atexit.register(lambda: print('TensorFlow:', 'tensorflow' in sys.modules))\n"
    )
    command = [sys.executable, "train.py", "--experiment=vision/digits_mlp", "--mode=train"]
    command += [f"--model_dir={tmp_path / 'run'}", f"--import={module}"]
    command += ["--set=trainer.train_steps=1"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "TensorFlow: True" in output
    assert "frozen: True" in output
