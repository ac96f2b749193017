"""With processes of a few lines of Python, which fail in all the ways that there are."""

import os
import pathlib
import signal
import sys
import threading
import time

import pytest

from official_lite.tools import launch
from official_lite.tools.launch import ProcessEnd, ProcessSpec, Restarts, Role
from tests import waiting

WAIT = "import signal; signal.pause()"
KILLED = "import os; os.kill(os.getpid(), 9)"
# As train.py does with it.
UNTIL_SIGTERM = """
import pathlib, signal, sys
def stop(*_):
    sys.exit(42)
signal.signal(signal.SIGTERM, stop)
pathlib.Path(FILE).touch()
signal.pause()
"""
DEAF = """
import pathlib, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(FILE).touch()
signal.pause()
"""


def _spec(name: str, code: str, role: Role = Role.TRAINER) -> ProcessSpec:
    command = [sys.executable, "-c", code]
    return ProcessSpec(name=name, role=role, command=command, environment={}, width=8)


def _killed(file: pathlib.Path) -> str:
    """Code that leaves its process number in a file and is killed."""
    return f"import os, pathlib; pathlib.Path({str(file)!r}).write_text(str(os.getpid())); {KILLED}"


def _until_killed(file: pathlib.Path) -> str:
    """Code that waits until the process of `_killed` has ended."""
    return f"""
import pathlib, time
file = pathlib.Path({str(file)!r})
while not file.exists() or not file.read_text():
    time.sleep(0.01)
stat = pathlib.Path("/proc", file.read_text(), "stat")
while stat.exists() and ") Z" not in stat.read_text():
    time.sleep(0.01)
"""


def _run(*specs: ProcessSpec, restarts: int = 0, grace_secs: float = 0.2) -> ProcessEnd | None:
    cluster = launch.LaunchedCluster(specs, restarts=Restarts(restarts), grace_secs=grace_secs)
    return cluster.run()


@pytest.mark.timeout(120)
def test_servers_are_stopped_when_all_trainers_have_ended() -> None:
    server = _spec("ps 0", WAIT, Role.SERVER)
    assert _run(server, _spec("worker 0", ""), _spec("worker 1", "")) is None


def test_first_failure_is_named_and_the_others_are_stopped(
    capfd: pytest.CaptureFixture[str],
) -> None:
    end = _run(_spec("worker 0", WAIT), _spec("worker 1", "raise SystemExit(3)"))
    assert end == ProcessEnd(name="worker 1", code=3)
    said = capfd.readouterr().err
    assert "launch   | worker 1 ended with exit code 3 first." in said
    assert "worker 0 did not stop in time. Killing it." in said


def test_killed_process_is_named_and_not_the_one_that_lost_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody looks before both have ended.
    monkeypatch.setattr(launch, "_SECONDS_BETWEEN_LOOKS", 1.0)
    file = tmp_path / "killed"
    end = _run(
        _spec("worker 0", f"{_until_killed(file)}\nraise SystemExit(7)"),
        _spec("worker 1", _killed(file)),
    )
    assert end == ProcessEnd(name="worker 1", code=-9)


def test_other_processes_may_end_by_themselves(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "killed"
    # Later than the launcher looks.
    late = f"{_until_killed(file)}\ntime.sleep(0.5); print('noticed'); raise SystemExit(7)"
    end = _run(
        _spec("worker 0", late), _spec("worker 1", _killed(file)), grace_secs=waiting.SECONDS
    )
    assert end == ProcessEnd(name="worker 1", code=-9)
    captured = capfd.readouterr()
    assert "worker 0 | noticed" in captured.out
    assert "worker 0 ended with exit code 7." in captured.err


def test_replaceable_process_is_replaced_and_the_trainers_continue(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "came_again"
    # Killed the first time; the chief ends when it has come again.
    code = f"import os, pathlib, signal; p = pathlib.Path({str(file)!r} + '.1')\n"
    code += f"if p.exists(): pathlib.Path({str(file)!r}).touch(); signal.pause()\n"
    code += "p.touch(); os.kill(os.getpid(), 9)"
    chief = f"import os, time\nwhile not os.path.exists({str(file)!r}): time.sleep(0.01)"
    worker = _spec("worker 0", code, Role.REPLACEABLE)
    assert _run(worker, _spec("chief", chief), restarts=1) is None
    wrong = _spec("worker 0", "raise SystemExit(2)", Role.REPLACEABLE)
    assert _run(wrong, _spec("chief", WAIT), restarts=5) == ProcessEnd(name="worker 0", code=2)
    said = capfd.readouterr().err
    assert "worker 0 was killed by SIGKILL (perhaps out of memory). The other" in said
    assert "processes continue; restart 1 of 1." in said


def _signal_when(files: list[pathlib.Path], *pauses: float) -> threading.Thread:
    """Sends SIGTERM to this process once the files are there, and again after each pause."""

    def send() -> None:
        waiting.wait_for(lambda: all(file.exists() for file in files))
        for pause in pauses:
            time.sleep(pause)
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_signal_reaches_all_trainers_and_a_second_one_kills_them(tmp_path: pathlib.Path) -> None:
    files = [tmp_path / "0", tmp_path / "1"]
    specs = [
        _spec(f"worker {i}", UNTIL_SIGTERM.replace("FILE", repr(str(file))))
        for i, file in enumerate(files)
    ]
    thread = _signal_when(files, 0.0)
    end = _run(*specs, grace_secs=waiting.SECONDS)
    thread.join()
    assert end is not None
    assert end.code == 42

    deaf = tmp_path / "deaf"
    thread = _signal_when([deaf], 0.0, 0.7)
    end = _run(_spec("worker 0", DEAF.replace("FILE", repr(str(deaf)))), grace_secs=waiting.SECONDS)
    thread.join()
    assert end == ProcessEnd(name="worker 0", code=-9)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
