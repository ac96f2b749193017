import pathlib
import subprocess
import sys

import pytest

from official_lite.tools import launch
from official_lite.tools.launch import ProcessEnd
from tests import waiting

ROOT = pathlib.Path(__file__).parents[2]


def _run(code: str, log_dir: pathlib.Path | None = None) -> ProcessEnd:
    spec = launch.ProcessSpec(
        name="worker 1",
        role=launch.Role.TRAINER,
        command=[sys.executable, "-c", code],
        environment={"ANSWER": "42"},
        log_dir=log_dir,
        width=9,
    )
    process = launch.LaunchedProcess(spec)
    end = waiting.wait_for(process.end)
    process.close()
    return end


def test_output_is_forwarded_with_the_name_and_logged(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = "import os, sys; print(os.environ['ANSWER']); print('é', file=sys.stderr)"
    assert _run(code, tmp_path).code == 0
    assert capfd.readouterr() == ("worker 1  | 42\n", "worker 1  | é\n")
    assert sorted((tmp_path / "worker_1.log").read_text().split()) == ["42", "é"]


def test_output_that_is_no_text_or_has_no_line_feed_is_forwarded(
    capfd: pytest.CaptureFixture[str],
) -> None:
    _run("import sys; sys.stdout.buffer.write(b'a\\xff\\nend')")
    assert capfd.readouterr().out == "worker 1  | a\ufffd\nworker 1  | end\n"


ENDS = {
    1: ("ended with exit code 1", 1, False),
    2: ("ended with exit code 2", 2, False),
    3: ("ended with exit code 3", 3, False),
    7: ("ended with exit code 7", 7, True),
    42: ("ended with exit code 42", 42, True),
    130: ("ended with exit code 130", 130, False),
    143: ("ended with exit code 143", 143, True),
    -9: ("was killed by SIGKILL (perhaps out of memory)", 137, True),
    -2: ("was killed by SIGINT", 130, False),
}


def test_end_of_a_process_in_words() -> None:
    found = {code: ProcessEnd(name="worker 1", code=code) for code in ENDS}
    assert {
        code: (str(end).removeprefix("worker 1 "), end.exit_code, end.may_restart)
        for code, end in found.items()
    } == ENDS


_LAUNCHER = """
import signal, sys
from official_lite.tools import launch
spec = launch.ProcessSpec(
    name="worker 0",
    role=launch.Role.TRAINER,
    command=[sys.executable, "-c", "import signal; signal.pause()"],
    environment={},
)
print(launch.LaunchedProcess(spec).pid, flush=True)
signal.pause()
"""


def _is_running(process: pathlib.Path) -> bool:
    try:
        return "\nState:\tZ" not in (process / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="the signal is sent by Linux")
def test_process_ends_with_a_launcher_that_was_killed() -> None:
    command = [sys.executable, "-c", _LAUNCHER]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        started = pathlib.Path("/proc") / launcher.stdout.readline().strip()
        assert started.exists()
        launcher.kill()
    waiting.wait_for(lambda: not _is_running(started))
