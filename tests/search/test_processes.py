"""Processes that end when they should."""

import os
import pathlib
import signal
import sys

import gin
import pytest

from official_lite.common import errors, plugins
from official_lite.search import worker
from tests import waiting


def write(path: str) -> None:
    print("written")
    pathlib.Path(path).write_text(str(os.getpid()))


def write_and_wait(path: str) -> None:
    write(path)
    signal.pause()


def parent_of_one(path: str) -> None:
    worker.start_process(write_and_wait, path, output_path=path + ".txt")
    signal.pause()


def write_default(path: str) -> None:
    pathlib.Path(path).write_text(f"{bound_in_gin()} {plugin_name()}")


@gin.configurable
def bound_in_gin(value: int = 0) -> int:
    return value


def plugin_name() -> str:
    return " ".join(name for name in sys.modules if name.startswith("official_lite_plugin_"))


def refuse() -> None:
    raise errors.DataError("no data")


def _wait_for(path: pathlib.Path) -> int:
    return int(waiting.wait_for(lambda: path.exists() and path.read_text()))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:1]


@pytest.mark.slow
def test_output_and_exit_code_are_kept(tmp_path) -> None:
    output = tmp_path / "logs" / "out.txt"
    process = worker.start_process(write, str(tmp_path / "a"), output_path=str(output))
    assert worker.wait_for_any([process]) is process
    assert process.exitcode == 0
    # TensorFlow may have said something before, if a plugin imports it.
    assert output.read_text().endswith("written\n")
    failed = worker.start_process(refuse, output_path=str(output))
    worker.wait_for_any([failed])
    assert failed.exitcode == errors.ExitCode.DATA
    assert "DataError: no data" in output.read_text()
    assert worker.describe_end(failed) == "with the exit code 3"


@pytest.mark.slow
def test_process_knows_gin_and_the_files_that_were_loaded(tmp_path) -> None:
    (tmp_path / "my_hooks.py").write_text("")
    plugins.load_module(str(tmp_path / "my_hooks.py"))
    gin.parse_config("bound_in_gin.value = 7")
    path = tmp_path / "a"
    process = worker.start_process(write_default, str(path), output_path=str(tmp_path / "b"))
    process.join()
    assert path.read_text().startswith("7 ")
    assert "_my_hooks" in path.read_text()


@pytest.mark.slow
def test_error_ends_what_was_started(tmp_path) -> None:
    process = worker.start_process(
        write_and_wait, str(tmp_path / "a"), output_path=str(tmp_path / "b")
    )
    _wait_for(tmp_path / "a")
    with pytest.raises(KeyboardInterrupt), worker.ended_with_us([process]):
        raise KeyboardInterrupt
    assert process.exitcode == -signal.SIGTERM
    assert worker.describe_end(process) == "by SIGTERM"


@pytest.mark.slow
def test_process_ends_with_a_parent_that_was_killed(tmp_path) -> None:
    parent = worker.start_process(
        parent_of_one, str(tmp_path / "a"), output_path=str(tmp_path / "b")
    )
    pid = _wait_for(tmp_path / "a")
    parent.kill()
    parent.join()
    waiting.wait_for(lambda: not _is_alive(pid))


def test_sigterm_is_an_error_that_can_be_gone_on_from() -> None:
    with pytest.raises(errors.PreemptedError, match="SIGTERM"), worker.raise_on_sigterm():
        signal.raise_signal(signal.SIGTERM)


def test_what_can_not_be_sent_is_said_before_a_process_starts(tmp_path) -> None:
    with pytest.raises(errors.ConfigTypeError, match="to a module"):
        worker.start_process(lambda: None, output_path=str(tmp_path / "a"))
