import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from official_lite.tools import __main__ as tools
from official_lite.tools import launch
from official_lite.tools.launch import ProcessEnd, ProcessSpec, Restarts, Role
from tests import commands, waiting


def _tf_configs(specs: list) -> dict[str, dict]:
    environments = {spec.name: spec.environment for spec in specs}
    return {name: json.loads(env["TF_CONFIG"]) for name, env in environments.items() if env}


def test_launched_workers_share_a_cluster_and_have_different_task_indices() -> None:
    specs = launch.plan(["train.py", "--mode=train"], workers=2)
    assert all(spec.role is Role.TRAINER for spec in specs)
    assert all(spec.command == [sys.executable, "train.py", "--mode=train"] for spec in specs)
    configs = _tf_configs(specs)
    assert configs["worker 0"]["cluster"] == configs["worker 1"]["cluster"]
    assert len(set(configs["worker 0"]["cluster"]["worker"])) == 2
    assert [config["task"] for config in configs.values()] == [
        {"type": "worker", "index": 0},
        {"type": "worker", "index": 1},
    ]


def test_launch_plan_with_parameter_servers_adds_a_chief() -> None:
    specs = launch.plan(["train.py"], workers=2, ps=1)
    roles = {spec.name: spec.role for spec in specs}
    assert roles == {
        "ps 0": Role.SERVER,
        "worker 0": Role.REPLACEABLE,
        "worker 1": Role.REPLACEABLE,
        "chief": Role.TRAINER,
    }
    cluster = _tf_configs(specs)["chief"]["cluster"]
    assert {job: len(addresses) for job, addresses in cluster.items()} == {
        "chief": 1,
        "worker": 2,
        "ps": 1,
    }


def test_launch_plan_with_data_workers_starts_a_data_service_and_passes_on_its_address() -> None:
    specs = launch.plan(["my_program"], workers=1, data_workers=2)
    names = [spec.name for spec in specs]
    assert names == ["data dispatcher", "data worker 0", "data worker 1", "worker 0"]
    address = specs[-1].command[1].removeprefix("--tf_data_service=grpc://")
    assert specs[0].command[-2:] == ["dispatcher", f"--port={address.partition(':')[2]}"]
    assert f"--dispatcher={address}" in specs[1].command
    assert specs[-1].command[0] == "my_program"


# Worker 1 fails on its first start, as the first argument specifies, and succeeds on the second.
SCRIPT = """
import json, os, pathlib, signal, sys
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
began = pathlib.Path(sys.argv[2]) / f"began_{index}"
if began.exists() or index == 0:
    print("done", sys.argv[3:])
    sys.exit(0)
began.touch()
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(int(sys.argv[1]))
"""


def _launch(tmp_path: pathlib.Path, how: str, max_restarts: int) -> int:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    options = ["--workers=2", f"--max_restarts={max_restarts}", f"--log_dir={tmp_path}/logs"]
    return tools.main(["launch", *options, "--", str(script), how, str(tmp_path), "--flag=a b"])


@pytest.mark.sample(1)
@pytest.mark.parametrize(("how", "code"), [("killed", 137), ("42", 42)])
def test_launch_restarts_a_failed_cluster_up_to_max_restarts(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str], how: str, code: int
) -> None:
    assert _launch(tmp_path, how, max_restarts=0) == code
    (tmp_path / "began_1").unlink()
    assert _launch(tmp_path, how, max_restarts=1) == 0
    captured = capfd.readouterr()
    assert "launch   | Restart 1 of 1." in captured.err
    assert "worker 1 | done ['--flag=a b']" in captured.out
    assert "done" in (tmp_path / "logs" / "worker_1.log").read_text()


def test_launch_does_not_restart_a_process_that_ends_with_a_config_error(
    tmp_path: pathlib.Path,
) -> None:
    assert _launch(tmp_path, "2", max_restarts=5) == 2


WAIT = "import signal; signal.pause()"
KILLED = "import os; os.kill(os.getpid(), 9)"
# Exits with code 42 on SIGTERM, as train.py does.
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
    """Return code that writes its process ID to a file and is then killed."""
    return f"import os, pathlib; pathlib.Path({str(file)!r}).write_text(str(os.getpid())); {KILLED}"


def _until_killed(file: pathlib.Path) -> str:
    """Return code that waits until the process of `_killed` has ended."""
    return f"""
import pathlib, time
file = pathlib.Path({str(file)!r})
while not file.exists() or not file.read_text():
    time.sleep(0.01)
stat = pathlib.Path("/proc", file.read_text(), "stat")
while stat.exists() and ") Z" not in stat.read_text():
    time.sleep(0.01)
"""


def _run_cluster(
    *specs: ProcessSpec, restarts: int = 0, grace_secs: float = 0.2
) -> ProcessEnd | None:
    cluster = launch.LaunchedCluster(specs, restarts=Restarts(restarts), grace_secs=grace_secs)
    return cluster.run()


@pytest.mark.timeout(120)
def test_launch_stops_the_servers_when_all_trainers_have_ended() -> None:
    server = _spec("ps 0", WAIT, Role.SERVER)
    assert _run_cluster(server, _spec("worker 0", ""), _spec("worker 1", "")) is None


def test_launch_reports_the_first_failed_process_and_stops_the_remaining_processes(
    capfd: pytest.CaptureFixture[str],
) -> None:
    end = _run_cluster(_spec("worker 0", WAIT), _spec("worker 1", "raise SystemExit(3)"))
    assert end == ProcessEnd(name="worker 1", code=3)
    said = capfd.readouterr().err
    assert "launch   | worker 1 ended with exit code 3 first." in said
    assert "worker 0 did not stop in time. Killing it." in said


def test_launch_reports_the_killed_process_and_not_the_peer_that_failed_as_a_result(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Make the launcher check its processes only after both have ended.
    monkeypatch.setattr(launch, "_SECONDS_BETWEEN_LOOKS", 1.0)
    file = tmp_path / "killed"
    end = _run_cluster(
        _spec("worker 0", f"{_until_killed(file)}\nraise SystemExit(7)"),
        _spec("worker 1", _killed(file)),
    )
    assert end == ProcessEnd(name="worker 1", code=-9)


def test_processes_that_notice_a_failure_may_exit_within_the_grace_period(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "killed"
    # Worker 0 exits after the launcher has noticed the failure.
    late = f"{_until_killed(file)}\ntime.sleep(0.5); print('noticed'); raise SystemExit(7)"
    end = _run_cluster(
        _spec("worker 0", late), _spec("worker 1", _killed(file)), grace_secs=waiting.SECONDS
    )
    assert end == ProcessEnd(name="worker 1", code=-9)
    captured = capfd.readouterr()
    assert "worker 0 | noticed" in captured.out
    assert "worker 0 ended with exit code 7." in captured.err


def test_launch_restarts_a_replaceable_process_while_the_trainers_continue(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "came_again"
    # The worker is killed on its first start. The chief ends when the worker has restarted.
    code = f"import os, pathlib, signal; p = pathlib.Path({str(file)!r} + '.1')\n"
    code += f"if p.exists(): pathlib.Path({str(file)!r}).touch(); signal.pause()\n"
    code += "p.touch(); os.kill(os.getpid(), 9)"
    chief = f"import os, time\nwhile not os.path.exists({str(file)!r}): time.sleep(0.01)"
    worker = _spec("worker 0", code, Role.REPLACEABLE)
    assert _run_cluster(worker, _spec("chief", chief), restarts=1) is None
    wrong = _spec("worker 0", "raise SystemExit(2)", Role.REPLACEABLE)
    assert _run_cluster(wrong, _spec("chief", WAIT), restarts=5) == ProcessEnd(
        name="worker 0", code=2
    )
    said = capfd.readouterr().err
    assert "worker 0 was killed by SIGKILL (perhaps out of memory). The other" in said
    assert "processes continue; restart 1 of 1." in said


def _signal_when(files: list[pathlib.Path], *pauses: float) -> threading.Thread:
    """Send SIGTERM to this process after each of the pauses, once all files exist."""

    def send() -> None:
        waiting.wait_for(lambda: all(file.exists() for file in files))
        for pause in pauses:
            time.sleep(pause)
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_launch_forwards_a_signal_to_all_trainers_and_kills_them_on_a_second_signal(
    tmp_path: pathlib.Path,
) -> None:
    files = [tmp_path / "0", tmp_path / "1"]
    specs = [
        _spec(f"worker {i}", UNTIL_SIGTERM.replace("FILE", repr(str(file))))
        for i, file in enumerate(files)
    ]
    thread = _signal_when(files, 0.0)
    end = _run_cluster(*specs, grace_secs=waiting.SECONDS)
    thread.join()
    assert end is not None
    assert end.code == 42

    deaf = tmp_path / "deaf"
    thread = _signal_when([deaf], 0.0, 0.7)
    end = _run_cluster(
        _spec("worker 0", DEAF.replace("FILE", repr(str(deaf)))), grace_secs=waiting.SECONDS
    )
    thread.join()
    assert end == ProcessEnd(name="worker 0", code=-9)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def _record_messages(monkeypatch: pytest.MonkeyPatch, file: pathlib.Path) -> list[str]:
    """Return a list that receives the launcher's messages; the first one creates the file."""
    said: list[str] = []

    def say(text: str, width: int = 0) -> None:
        said.append(text)
        file.touch()

    monkeypatch.setattr(launch, "say", say)
    return said


def _exit_late(code: str, file: pathlib.Path) -> str:
    """Return the code with an exit that waits until the file exists."""
    wait = f"    while not pathlib.Path({str(file)!r}).exists():\n        time.sleep(0.01)\n"
    return "import time\n" + code.replace("    sys.exit", f"{wait}    sys.exit")


def test_launch_waits_for_checkpoints_that_take_longer_than_the_grace_period_after_a_signal(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / "0", tmp_path / "1"]
    fast, slow = (UNTIL_SIGTERM.replace("FILE", repr(str(file))) for file in files)
    # The grace period is over at once, while worker 1 still saves.
    slow = _exit_late(slow, tmp_path / "may_end")
    said = _record_messages(monkeypatch, tmp_path / "may_end")
    thread = _signal_when(files, 0.0)
    end = _run_cluster(_spec("worker 0", fast), _spec("worker 1", slow), grace_secs=0.0)
    thread.join()
    assert end == ProcessEnd(name="worker 0", code=42)
    assert said[1:] == ["worker 1 ended with exit code 42."]


def test_launch_stops_waiting_for_checkpoints_when_a_trainer_fails_after_a_signal(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / str(i) for i in range(3)]
    codes = [UNTIL_SIGTERM, UNTIL_SIGTERM, DEAF]
    saves, fails, hangs = (
        code.replace("FILE", repr(str(file))) for code, file in zip(codes, files, strict=True)
    )
    fails = _exit_late(fails, tmp_path / "may_end").replace("exit(42)", "exit(1)")
    said = _record_messages(monkeypatch, tmp_path / "may_end")
    thread = _signal_when(files, 0.0)
    specs = [_spec(f"worker {i}", code) for i, code in enumerate([saves, fails, hangs])]
    end = _run_cluster(*specs)
    thread.join()
    assert end == ProcessEnd(name="worker 0", code=42)
    assert said[1:] == [
        "worker 1 ended with exit code 1.",
        "worker 2 did not stop in time. Killing it.",
    ]


def test_launch_kills_trainers_that_do_not_stop_for_a_long_time_after_the_time_limit(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Ready(launch.LaunchedProcess):
        def __init__(self, spec: ProcessSpec) -> None:
            super().__init__(spec)
            waiting.wait_for((tmp_path / spec.name).exists)

    monkeypatch.setattr(launch, "LaunchedProcess", Ready)
    specs = [
        _spec(name, code.replace("FILE", repr(str(tmp_path / name))))
        for name, code in (("worker 0", UNTIL_SIGTERM), ("worker 1", DEAF))
    ]
    cluster = launch.LaunchedCluster(specs, restarts=Restarts(0), grace_secs=0.0, most_secs=0.0)
    assert cluster.run() == ProcessEnd(name="worker 0", code=42)
    assert cluster.reached_limit
    assert "worker 1 did not stop in time. Killing it." in capfd.readouterr().err


def test_launch_forwards_a_signal_that_arrives_while_it_starts_the_processes(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Started(launch.LaunchedProcess):
        def __init__(self, spec: ProcessSpec) -> None:
            if spec.name == "worker 1":
                os.kill(os.getpid(), signal.SIGTERM)
            super().__init__(spec)

    monkeypatch.setattr(launch, "LaunchedProcess", Started)
    specs = [_spec("worker 0", WAIT), _spec("worker 1", WAIT)]
    end = _run_cluster(*specs, grace_secs=waiting.SECONDS)
    assert end is not None
    assert end.code == -signal.SIGTERM
    assert "did not stop in time" not in capfd.readouterr().err


def test_launch_asks_the_trainers_to_save_when_a_server_has_died(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "trains"
    server = f"import os, time\nwhile not os.path.exists({str(file)!r}): time.sleep(0.01)\n"
    trainer = _spec("worker 0", UNTIL_SIGTERM.replace("FILE", repr(str(file))))
    end = _run_cluster(
        _spec("data dispatcher", server + KILLED, Role.SERVER), trainer, grace_secs=waiting.SECONDS
    )
    assert end == ProcessEnd(name="data dispatcher", code=-9)
    assert "worker 0 ended with exit code 42." in capfd.readouterr().err


@pytest.mark.parametrize("role", [Role.REPLACEABLE, Role.SERVER])
def test_server_that_exits_with_0_during_training_is_reported_as_lost_by_launch(
    capfd: pytest.CaptureFixture[str], role: Role
) -> None:
    ended = _spec("worker 0", "", role)
    end = _run_cluster(ended, _spec("chief", WAIT), restarts=1)
    assert end == ProcessEnd(name="worker 0", code=0, is_lost=True)
    is_replaced = role is Role.REPLACEABLE
    assert ("continue; restart 1 of 1." in capfd.readouterr().err) == is_replaced


@pytest.mark.parametrize("role", [Role.REPLACEABLE, Role.SERVER])
def test_launch_succeeds_if_a_server_ends_with_0_shortly_before_the_trainer(
    tmp_path: pathlib.Path, role: Role
) -> None:
    file = tmp_path / "pid"
    server = f"import os, pathlib; pathlib.Path({str(file)!r}).write_text(str(os.getpid()))"
    # The process directory disappears when the launcher has noticed the end of the server.
    trainer = f"{_until_killed(file)}\nwhile stat.exists(): time.sleep(0.01)"
    specs = [_spec("worker 0", server, role), _spec("chief", trainer)]
    assert _run_cluster(*specs, grace_secs=waiting.SECONDS) is None


# Fails unless its launcher ignores SIGHUP, whose bit is the lowest.
HANG_UP = """
import os, pathlib
status = pathlib.Path(f"/proc/{os.getppid()}/status").read_text()
assert int(status.partition("SigIgn:")[2].split()[0], 16) & 1
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the ignored signals from /proc")
def test_launch_started_with_nohup_continues_when_the_terminal_is_closed() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert _run_cluster(_spec("worker 0", HANG_UP)) is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def _run_process(code: str, log_dir: pathlib.Path | None = None) -> ProcessEnd:
    spec = ProcessSpec(
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


def test_process_output_is_forwarded_with_the_process_name_and_logged(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = "import os, sys; print(os.environ['ANSWER']); print('é', file=sys.stderr)"
    assert _run_process(code, tmp_path).code == 0
    assert capfd.readouterr() == ("worker 1  | 42\n", "worker 1  | é\n")
    assert sorted((tmp_path / "worker_1.log").read_text().split()) == ["42", "é"]


def test_process_output_with_invalid_utf_8_or_no_final_newline_is_forwarded(
    capfd: pytest.CaptureFixture[str],
) -> None:
    _run_process("import sys; sys.stdout.buffer.write(b'a\\xff\\nend')")
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


def test_return_code_determines_the_description_exit_code_and_restart_of_a_process() -> None:
    found = {code: ProcessEnd(name="worker 1", code=code) for code in ENDS}
    assert {
        code: (str(end).removeprefix("worker 1 "), end.exit_code, end.may_restart)
        for code, end in found.items()
    } == ENDS
    lost = ProcessEnd(name="ps 0", code=0, is_lost=True)
    assert str(lost) == "ps 0 ended with exit code 0 although the training still needs it"
    assert (lost.exit_code, lost.may_restart) == (7, True)


_LAUNCHER = """
import signal, sys
from official_lite.tools import launch
specs = launch.plan([sys.executable, "-c", "import signal; signal.pause()"], workers=1, ps=1)
print(*(launch.LaunchedProcess(spec).pid for spec in specs), flush=True)
signal.pause()
"""


def _is_running(process: pathlib.Path) -> bool:
    try:
        return "\nState:\tZ" not in (process / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="the signal is sent by Linux")
def test_chief_is_asked_to_save_when_its_launcher_is_killed_and_keeps_its_servers() -> None:
    specs = launch.plan(["train.py"], workers=1, ps=1)
    assert {spec.name: spec.ends_with_launcher for spec in specs} == {
        "ps 0": False,
        "worker 0": False,
        "chief": True,
    }
    command = [sys.executable, "-c", _LAUNCHER]
    with subprocess.Popen(
        command, cwd=commands.ROOT, stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None
        pids = launcher.stdout.readline().split()
        *servers, chief = (pathlib.Path("/proc", pid) for pid in pids)
        assert chief.exists()
        launcher.kill()
    try:
        waiting.wait_for(lambda: not _is_running(chief))
        assert [_is_running(server) for server in servers] == [True, True]
    finally:
        for server in servers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(server.name), signal.SIGKILL)
