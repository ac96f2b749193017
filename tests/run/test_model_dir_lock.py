import json
import os
import pathlib
import socket
import subprocess
import sys
from typing import Any

import pytest

from official_lite.common import errors, files
from official_lite.run import model_dir_lock


class Clock:
    """A clock that advances when `sleep` is called."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.on_sleep = lambda: None

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.on_sleep()


def _write(directory: pathlib.Path, **entries: Any) -> None:
    holder = {
        "id": "other",
        "host": "elsewhere",
        "namespace": model_dir_lock._process_namespace(),
        "pid": 1,
        "process_start": "",
        "start_time": 900.0,
        "beat": 1000.0,
    }
    (directory / ".lock").write_text(json.dumps(holder | entries))


def _lock(directory: pathlib.Path, clock: Clock | None = None) -> model_dir_lock.ModelDirLock:
    clock = clock or Clock()
    return model_dir_lock.ModelDirLock(str(directory), sleep=clock.sleep, clock=clock)


def _holder(directory: pathlib.Path) -> Any:
    return json.loads((directory / ".lock").read_text())


def test_model_directory_lock_names_its_holder_and_is_removed_on_exit(
    tmp_path: pathlib.Path,
) -> None:
    with _lock(tmp_path):
        holder = _holder(tmp_path)
        assert (holder["pid"], holder["host"]) == (os.getpid(), socket.gethostname())
    assert os.listdir(tmp_path) == []


def test_error_for_a_second_training_run_names_the_holder_of_the_lock(
    tmp_path: pathlib.Path,
) -> None:
    with _lock(tmp_path):
        with (
            pytest.raises(errors.ModelDirBusyError, match=f"process {os.getpid()} on"),
            _lock(tmp_path),
        ):
            pass
        assert _holder(tmp_path)["pid"] == os.getpid(), "the first process keeps the lock"
    with _lock(tmp_path):
        pass


def test_lock_is_respected_as_soon_as_its_file_exists(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, refused = files.create_text, []

    def create_and_try_again(path: str, text: str) -> None:
        create(path, text)
        monkeypatch.setattr(files, "create_text", create)
        with pytest.raises(errors.ModelDirBusyError), _lock(tmp_path):
            pass
        refused.append(path)

    monkeypatch.setattr(files, "create_text", create_and_try_again)
    with _lock(tmp_path):
        assert len(refused) == 1


def test_failed_run_releases_the_model_directory_lock(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ZeroDivisionError), _lock(tmp_path):
        1 / 0  # noqa: B018  (the failure)
    assert os.listdir(tmp_path) == []


TAKE = """
import os, signal, sys
from official_lite.run import model_dir_lock
model_dir_lock.ModelDirLock(sys.argv[1]).__enter__()
assert "tensorflow" not in sys.modules
print("taken", flush=True)
signal.pause()
"""


# The init process of a container may never reap orphaned processes, which stay zombies.
@pytest.mark.parametrize("is_waited_for", [True, False])
def test_lock_of_a_killed_process_is_taken_over_at_once(
    tmp_path: pathlib.Path, is_waited_for: bool
) -> None:
    command = [sys.executable, "-c", TAKE, str(tmp_path)]
    clock = Clock()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"taken\n"
        with pytest.raises(errors.ModelDirBusyError, match=str(process.pid)), _lock(tmp_path):
            pass
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        if is_waited_for:
            process.wait()
        with _lock(tmp_path, clock):
            assert _holder(tmp_path)["pid"] == os.getpid()
    assert clock.now == 1000.0, "the lock must be taken without waiting"


@pytest.mark.parametrize("pid", [1, None])
def test_lock_of_a_dead_process_with_a_reused_pid_is_taken_over(
    tmp_path: pathlib.Path, pid: int | None
) -> None:
    host = socket.gethostname()
    _write(tmp_path, host=host, pid=pid or os.getpid(), process_start="long ago")
    with _lock(tmp_path):
        assert _holder(tmp_path)["id"] != "other"


@pytest.mark.parametrize("where", [{}, {"host": socket.gethostname(), "namespace": "a container"}])
@pytest.mark.parametrize("beat", [900.0, 1000.0, 1e6])
def test_lock_of_another_host_is_taken_over_after_three_missed_heartbeats(
    tmp_path: pathlib.Path, where: dict[str, str], beat: float
) -> None:
    _write(tmp_path, beat=beat, **where)
    clock = Clock()
    with _lock(tmp_path, clock):
        assert _holder(tmp_path)["id"] != "other"
    assert clock.now == 1000.0 + 3 * model_dir_lock.BEAT_SECS


def test_lock_of_another_host_is_respected_while_its_heartbeat_changes(
    tmp_path: pathlib.Path,
) -> None:
    _write(tmp_path, beat=900.0)
    clock = Clock()
    clock.on_sleep = lambda: _write(tmp_path, beat=clock.now - 100)
    with pytest.raises(errors.ModelDirBusyError, match="elsewhere"), _lock(tmp_path, clock):
        pass
    assert clock.now == 1000.0 + model_dir_lock.BEAT_SECS


@pytest.mark.parametrize("content", ["", "{", "[]", '{"id": 1}'])
def test_unreadable_lock_is_taken_over(tmp_path: pathlib.Path, content: str) -> None:
    (tmp_path / ".lock").write_text(content)
    with _lock(tmp_path):
        assert _holder(tmp_path)["pid"] == os.getpid()
    assert os.listdir(tmp_path) == []


def test_lock_that_a_live_process_has_just_taken_over_is_respected(
    tmp_path: pathlib.Path, monkeypatch
) -> None:
    def rename(source: str, target: str) -> None:
        if not seen:
            # Meanwhile, another process replaces the stale lock.
            start = model_dir_lock._process_start(os.getppid())
            newer = {"host": socket.gethostname(), "pid": os.getppid(), "process_start": start}
            _write(tmp_path, id="newer", **newer)
        seen.append(target)
        os.replace(source, target)

    seen: list[str] = []
    _write(tmp_path, host=socket.gethostname(), pid=2**22 + 1)
    monkeypatch.setattr(model_dir_lock.files, "rename", rename)
    with pytest.raises(errors.ModelDirBusyError, match=str(os.getppid())), _lock(tmp_path):
        pass
    assert _holder(tmp_path)["id"] == "newer"
    assert os.listdir(tmp_path) == [".lock"]


def test_lock_updates_its_heartbeat_while_held(tmp_path: pathlib.Path, monkeypatch) -> None:
    monkeypatch.setattr(model_dir_lock, "BEAT_SECS", 0.01)
    clock = Clock()
    with _lock(tmp_path, clock):
        clock.now = 2000.0
        while _holder(tmp_path)["beat"] != 2000.0:
            pass


def test_lock_taken_over_by_another_process_is_not_removed(
    tmp_path: pathlib.Path, monkeypatch
) -> None:
    monkeypatch.setattr(model_dir_lock, "BEAT_SECS", 0.01)
    lock = _lock(tmp_path)
    with lock:
        _write(tmp_path)
        lock._thread.join()
        assert _holder(tmp_path)["id"] == "other"
    assert _holder(tmp_path)["id"] == "other"


def test_checking_whether_a_model_directory_is_locked_does_not_change_the_lock(
    tmp_path: pathlib.Path,
) -> None:
    assert model_dir_lock.is_held(str(tmp_path)) is False
    with _lock(tmp_path):
        assert model_dir_lock.is_held(str(tmp_path)) is True
    _write(tmp_path, host="elsewhere")
    assert model_dir_lock.is_held(str(tmp_path)) is None
    _write(tmp_path, host=socket.gethostname(), pid=2**22 + 1)
    assert model_dir_lock.is_held(str(tmp_path)) is False
    assert _holder(tmp_path)["pid"] == 2**22 + 1
