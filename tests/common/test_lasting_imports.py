import gc
import pathlib
import subprocess
import sys

import pytest

from official_lite.common.app import lasting_imports

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def thawed():
    """Without what `conftest.py` has frozen for all tests."""
    gc.unfreeze()
    yield
    gc.freeze()


def test_collector_leaves_alone_what_was_made_inside():
    with lasting_imports():
        made = [[] for _ in range(1000)]
        assert not gc.isenabled()
    assert gc.isenabled()
    assert not any(other is made for other in gc.get_objects())
    assert gc.get_freeze_count() > 1000


def test_collector_comes_back_after_an_error():
    with pytest.raises(ImportError), lasting_imports():
        raise ImportError("no such module")
    assert gc.isenabled()


def test_collector_that_was_off_stays_off():
    gc.disable()
    try:
        with lasting_imports():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.slow
def test_command_keeps_the_collector_from_tensorflow(tmp_path):
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
