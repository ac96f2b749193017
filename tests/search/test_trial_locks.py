"""One worker a trial."""

from official_lite.run import model_dir_lock
from official_lite.search import trial_locks


def test_trial_is_claimed_once_until_it_is_given_back(tmp_path) -> None:
    mine, yours = trial_locks.TrialLocks(str(tmp_path)), trial_locks.TrialLocks(str(tmp_path))
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
        with trial_locks.TrialLocks(str(tmp_path)).turn():
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
    assert not trial_locks.is_trained_in(str(tmp_path))
    with model_dir_lock.ModelDirLock(str(tmp_path)):
        assert trial_locks.is_trained_in(str(tmp_path))
    assert not trial_locks.is_trained_in(str(tmp_path))
