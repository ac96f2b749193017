"""Workers: the trials that they run, and what happens to interrupted trials."""

import os
import pathlib
import signal
import sys

import gin
import pytest

from official_lite import search
from official_lite.common import errors, plugins, preemption
from official_lite.run import model_dir_lock
from official_lite.search import results, storage, worker
from tests import waiting
from tests.search import toys


def _states(study) -> list[str]:
    return [trial.state.name for trial in study.trials]


def _starts(study_dir: pathlib.Path) -> dict[int, int]:
    notes = sorted(study_dir.glob("trials/*/notes.txt"))
    return {int(p.parent.name): p.read_text().splitlines().count("started") for p in notes}


@pytest.mark.slow
def test_crash_of_an_isolated_trial_fails_only_that_trial(tmp_path) -> None:
    config = toys.config(isolation="process", num_trials=4)
    study = search.run_study(toys.crash_of_the_third, config, str(tmp_path / "process"))
    assert _states(study) == ["COMPLETE", "COMPLETE", "FAIL", "COMPLETE"]
    config = toys.config(num_trials=2)
    same = search.run_study(toys.parabola, config, str(tmp_path / "none"))
    assert [t.value for t in same.trials] == [t.value for t in study.trials[:2]]


@pytest.mark.parametrize(
    "stop", [errors.PreemptedError("SIGTERM"), errors.DiskFullError("full"), KeyboardInterrupt()]
)
def test_stopped_trial_resumes_any_number_of_times_and_finished_trials_run_once(
    stop: BaseException, tmp_path
) -> None:
    # There may be more stops than `max_starts`, because only kills count toward this limit.
    stops = iter([False, True, True, True, False, False])

    def evaluate(trial: search.TrialRun) -> float:
        toys._note(trial, "started")
        if next(stops):
            raise stop
        return toys.parabola(trial)

    config = toys.config(num_trials=3, max_starts=2)
    for _ in range(3):
        with pytest.raises(type(stop)):
            search.run_study(evaluate, config, str(tmp_path))
    study = search.run_study(evaluate, config, str(tmp_path))
    assert _states(study) == ["COMPLETE"] * 3
    assert _starts(tmp_path) == {0: 1, 1: 4, 2: 1}


def test_killed_trial_fails_after_max_starts(tmp_path) -> None:
    class Killed(BaseException):
        """An exception after which nothing is cleaned up, as after SIGKILL."""

    def evaluate(trial: search.TrialRun) -> float:
        toys._note(trial, "started")
        if trial.number == 0:
            raise Killed
        return toys.parabola(trial)

    config = toys.config(num_trials=2, max_starts=2)
    for _ in range(2):
        with pytest.raises(Killed):
            search.run_study(evaluate, config, str(tmp_path))
    assert _states(search.run_study(evaluate, config, str(tmp_path))) == ["FAIL", "COMPLETE"]
    assert _starts(tmp_path) == {0: 2, 1: 1}


def test_trial_whose_process_outlived_its_worker_is_not_restarted(tmp_path) -> None:
    config = toys.config(num_trials=2)
    search.run_study(toys.parabola, config.replace(num_trials=1), str(tmp_path))
    number = storage.open_study(config, str(tmp_path)).ask().number
    model_dir = results.trial_dir(str(tmp_path), number)
    os.makedirs(model_dir)
    with model_dir_lock.ModelDirLock(model_dir):
        study = search.run_study(toys.parabola, config, str(tmp_path))
    assert _states(study) == ["COMPLETE", "RUNNING"]


@pytest.mark.slow
def test_trial_that_always_kills_its_worker_fails_after_max_starts(tmp_path) -> None:
    config = toys.config(num_workers=2, max_starts=2, num_trials=4)
    study = search.run_study(toys.crash_of_the_third, config, str(tmp_path))
    assert _states(study) == ["COMPLETE", "COMPLETE", "FAIL", "COMPLETE"]


@pytest.mark.slow
@pytest.mark.parametrize("is_taken_up", [False, True])
def test_killed_worker_is_restarted_and_its_trial_resumes(
    is_taken_up: bool, tmp_path, monkeypatch
) -> None:
    if is_taken_up:
        # Act as if the other worker had already taken over the trial.
        monkeypatch.setattr(worker, "has_broken_off_trials", lambda *_: False)
    config = toys.config(num_workers=2, num_trials=6)
    study = search.run_study(toys.killed_once, config, str(tmp_path))
    assert _states(study) == ["COMPLETE"] * 6
    assert _starts(tmp_path) == {0: 1, 1: 1, 2: 2, 3: 1, 4: 1, 5: 1}


def test_trial_that_another_worker_has_just_finished_is_not_run_again(
    tmp_path, monkeypatch
) -> None:
    config = toys.config(num_trials=3)
    search.run_study(toys.parabola, config.replace(num_trials=1), str(tmp_path))
    study = storage.open_study(config, str(tmp_path))
    number = study.ask().number
    claim = worker.TrialLocks.claim

    def claim_late(self, wanted):
        if (
            wanted == number
            and storage.open_study(config, str(tmp_path)).trials[number].value is None
        ):
            study.tell(number, 1.0)
        return claim(self, wanted)

    monkeypatch.setattr(worker.TrialLocks, "claim", claim_late)
    again = search.run_study(toys.parabola, config, str(tmp_path))
    assert _states(again) == ["COMPLETE"] * 3
    assert again.trials[number].value == 1.0


def test_trial_lock_can_be_claimed_again_only_after_its_release(tmp_path) -> None:
    mine, yours = worker.TrialLocks(str(tmp_path)), worker.TrialLocks(str(tmp_path))
    held = mine.claim(3)
    assert held is not None
    assert yours.claim(3) is None
    other = yours.claim(4)
    assert other is not None
    for claim in (held, other):
        claim.__exit__(None, None, None)
    again = yours.claim(3)
    assert again is not None
    again.__exit__(None, None, None)


def test_only_one_worker_at_a_time_chooses_a_trial(tmp_path) -> None:
    import threading

    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        with worker.TrialLocks(str(tmp_path)).turn():
            inside.append(1)
            most.append(len(inside))
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 4


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
def test_output_of_a_started_process_is_written_to_a_file_and_its_exit_code_is_reported(
    tmp_path,
) -> None:
    output = tmp_path / "logs" / "out.txt"
    process = worker.start_process(write, str(tmp_path / "a"), output_path=str(output))
    assert worker.wait_for_any([process]) is process
    assert process.exitcode == 0
    # If a plugin imports TensorFlow, the output may start with messages from TensorFlow.
    assert output.read_text().endswith("written\n")
    failed = worker.start_process(refuse, output_path=str(output))
    worker.wait_for_any([failed])
    assert failed.exitcode == errors.ExitCode.DATA
    assert "DataError: no data" in output.read_text()
    assert worker.describe_end(failed) == "with the exit code 3"


@pytest.mark.slow
def test_started_process_has_the_gin_bindings_and_plugin_files_of_its_parent(tmp_path) -> None:
    (tmp_path / "my_hooks.py").write_text("")
    plugins.load_module(str(tmp_path / "my_hooks.py"))
    gin.parse_config("bound_in_gin.value = 7")
    path = tmp_path / "a"
    process = worker.start_process(write_default, str(path), output_path=str(tmp_path / "b"))
    process.join()
    assert path.read_text().startswith("7 ")
    assert "_my_hooks" in path.read_text()


@pytest.mark.slow
def test_error_in_the_parent_terminates_the_started_processes(tmp_path) -> None:
    process = worker.start_process(
        write_and_wait, str(tmp_path / "a"), output_path=str(tmp_path / "b")
    )
    _wait_for(tmp_path / "a")
    with pytest.raises(KeyboardInterrupt), worker.ended_with_us([process]):
        raise KeyboardInterrupt
    assert process.exitcode == -signal.SIGTERM
    assert worker.describe_end(process) == "by SIGTERM"


@pytest.mark.slow
def test_started_process_ends_when_its_parent_is_killed(tmp_path) -> None:
    parent = worker.start_process(
        parent_of_one, str(tmp_path / "a"), output_path=str(tmp_path / "b")
    )
    pid = _wait_for(tmp_path / "a")
    parent.kill()
    parent.join()
    waiting.wait_for(lambda: not _is_alive(pid))


def test_sigterm_within_raise_on_sigterm_raises_preempted_error() -> None:
    with pytest.raises(errors.PreemptedError, match="SIGTERM"), worker.raise_on_sigterm():
        signal.raise_signal(signal.SIGTERM)


def test_repeated_sigterm_raises_preempted_error_only_once(monkeypatch) -> None:
    monkeypatch.setattr(preemption, "SECONDS_OF_ONE_REQUEST", 1000.0)
    with worker.raise_on_sigterm():
        with pytest.raises(errors.PreemptedError):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)


def test_sigterm_to_a_forked_child_within_raise_on_sigterm_ends_the_child() -> None:
    with worker.raise_on_sigterm():
        child = os.fork()
        if child == 0:
            signal.raise_signal(signal.SIGTERM)
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM


def test_trial_stopped_by_sigterm_to_its_study_does_not_count_as_killed(tmp_path) -> None:
    stops = iter([True, True, False])

    def evaluate(trial: search.TrialRun) -> float:
        if next(stops):
            signal.raise_signal(signal.SIGTERM)
        return 1.0

    config = toys.config(num_trials=1, max_starts=1)
    for _ in range(2):
        with pytest.raises(errors.PreemptedError, match="SIGTERM"):
            search.run_study(evaluate, config, str(tmp_path))
    assert _states(search.run_study(evaluate, config, str(tmp_path))) == ["COMPLETE"]


def test_starting_a_process_with_a_function_that_cannot_be_pickled_is_refused(tmp_path) -> None:
    with pytest.raises(errors.ConfigTypeError, match="to a module"):
        worker.start_process(lambda: None, output_path=str(tmp_path / "a"))
