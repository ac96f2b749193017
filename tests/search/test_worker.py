"""Workers: what they take, and what becomes of trials that were broken off."""

import os
import pathlib

import pytest

from official_lite import search
from official_lite.common import errors
from official_lite.run import model_dir_lock
from official_lite.search import storage, worker
from tests.search import toys


def _states(study) -> list[str]:
    return [trial.state.name for trial in study.trials]


def _starts(study_dir: pathlib.Path) -> dict[int, int]:
    notes = sorted(study_dir.glob("trials/*/notes.txt"))
    return {int(p.parent.name): p.read_text().splitlines().count("started") for p in notes}


def test_error_fails_its_trial_and_not_the_study(tmp_path) -> None:
    study = search.run_study(toys.error_in_the_third, toys.config(), str(tmp_path))
    assert _states(study) == ["COMPLETE", "COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]


@pytest.mark.slow
def test_crash_in_a_process_of_its_own_fails_its_trial_only(tmp_path) -> None:
    config = toys.config(isolation="process", num_trials=4)
    study = search.run_study(toys.crash_of_the_third, config, str(tmp_path))
    assert _states(study) == ["COMPLETE", "COMPLETE", "FAIL", "COMPLETE"]


@pytest.mark.slow
def test_process_of_its_own_comes_to_the_same_values(tmp_path) -> None:
    values = []
    for isolation in ("none", "process"):
        config = toys.config(isolation=isolation, num_trials=2)
        study = search.run_study(toys.parabola, config, str(tmp_path / isolation))
        values.append([trial.value for trial in study.trials])
    assert values[0] == values[1]


def test_trial_that_was_stopped_goes_on_and_no_other_runs_twice(tmp_path) -> None:
    stops = iter([False, True, False, False, False])

    def evaluate(trial: search.TrialRun) -> float:
        toys._note(trial, "started")
        if next(stops):
            raise errors.PreemptedError("SIGTERM")
        return toys.parabola(trial)

    config = toys.config(num_trials=3)
    with pytest.raises(errors.PreemptedError):
        search.run_study(evaluate, config, str(tmp_path))
    study = search.run_study(evaluate, config, str(tmp_path))
    assert _states(study) == ["COMPLETE"] * 3
    assert _starts(tmp_path) == {0: 1, 1: 2, 2: 1}


def test_trial_that_is_stopped_again_and_again_goes_on_each_time(tmp_path) -> None:
    stops = iter([True, True, True, False])

    def evaluate(trial: search.TrialRun) -> float:
        if next(stops):
            raise errors.PreemptedError("SIGTERM")
        return toys.parabola(trial)

    config = toys.config(num_trials=1, max_starts=2)
    for _ in range(3):
        with pytest.raises(errors.PreemptedError):
            search.run_study(evaluate, config, str(tmp_path))
    assert _states(search.run_study(evaluate, config, str(tmp_path))) == ["COMPLETE"]


def test_trial_is_given_up_after_its_last_start(tmp_path) -> None:
    class Killed(BaseException):
        """Leaves everything as it is, as SIGKILL does."""

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


def test_trial_whose_process_outlived_its_worker_is_left_to_it(tmp_path) -> None:
    config = toys.config(num_trials=2)
    search.run_study(toys.parabola, config.replace(num_trials=1), str(tmp_path))
    number = storage.open_study(config, str(tmp_path)).ask().number
    model_dir = worker.trial_dir(str(tmp_path), number)
    os.makedirs(model_dir)
    with model_dir_lock.ModelDirLock(model_dir):
        study = search.run_study(toys.parabola, config, str(tmp_path))
    assert _states(study) == ["COMPLETE", "RUNNING"]


@pytest.mark.slow
def test_trial_that_always_kills_its_worker_fails_in_the_end(tmp_path) -> None:
    config = toys.config(num_workers=2, max_starts=2, num_trials=4)
    study = search.run_study(toys.crash_of_the_third, config, str(tmp_path))
    assert _states(study) == ["COMPLETE", "COMPLETE", "FAIL", "COMPLETE"]


@pytest.mark.slow
@pytest.mark.parametrize("is_taken_up", [False, True])
def test_killed_worker_is_started_again_and_its_trial_goes_on(
    is_taken_up: bool, tmp_path, monkeypatch
) -> None:
    if is_taken_up:
        # As it looks if the other worker was faster.
        monkeypatch.setattr(worker, "has_broken_off_trials", lambda *_: False)
    config = toys.config(num_workers=2, num_trials=6)
    study = search.run_study(toys.killed_once, config, str(tmp_path))
    assert _states(study) == ["COMPLETE"] * 6
    assert _starts(tmp_path) == {0: 1, 1: 1, 2: 2, 3: 1, 4: 1, 5: 1}


def test_trial_that_another_worker_ended_meanwhile_is_not_opened_again(
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


def test_trial_is_claimed_once_until_it_is_given_back(tmp_path) -> None:
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


def test_turns_do_not_overlap(tmp_path) -> None:
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


def test_directory_in_which_a_process_trains_is_known(tmp_path) -> None:
    assert not worker.is_trained_in(str(tmp_path))
    with model_dir_lock.ModelDirLock(str(tmp_path)):
        assert worker.is_trained_in(str(tmp_path))
    assert not worker.is_trained_in(str(tmp_path))
