import pytest

from official_lite.common import errors
from official_lite.core import run_checks


@pytest.mark.parametrize(
    ("trainer", "nearest"),
    [
        ({"name": "no_such_trainer"}, "no_such_trainer"),
        ({"hooks": ["early_stoping"]}, "`early_stopping`"),
        ({"hooks": [{"name": "early_stopping", "metrik": "mae"}]}, "`metric`"),
        ({"writers": ["console", "jsnl"]}, "`jsonl`"),
        ({"writers": [{"name": "jsonl", "paht": "x"}]}, "paht"),
    ],
)
def test_wrong_name_or_argument_is_answered(experiment, trainer, nearest) -> None:
    with pytest.raises(errors.UnknownNameError, match=nearest):
        run_checks.check(experiment(trainer=trainer), "train", "")


def test_mode_and_what_it_needs_are_checked(experiment, tmp_path) -> None:
    with pytest.raises(errors.UnknownNameError, match="`eval`"):
        run_checks.check(experiment(), "evla", str(tmp_path))
    with pytest.raises(errors.CheckpointError, match="random weights"):
        run_checks.check(experiment(), "eval", str(tmp_path))
    run_checks.check(experiment(task={"init_checkpoint": "x"}), "eval", str(tmp_path))


def test_parts_may_be_in_a_file_of_the_workspace(experiment, tmp_path) -> None:
    (tmp_path / "mine.py").write_text(
        "from official_lite import orbit\n"
        "class Mine(orbit.Hook):\n"
        "    def __init__(self, size): self.size = size\n"
    )
    entry = {"name": "{workspace}/mine.py", "size": 3}
    params = experiment(trainer={"hooks": [entry]}, workspace=str(tmp_path))
    (create,) = run_checks.find_hooks(params)
    assert create().size == 3


def test_event_files_are_one_of_the_writers(experiment) -> None:
    assert run_checks.writes_event_files(experiment())
    params = experiment(trainer={"writers": ["jsonl"]})
    assert not run_checks.writes_event_files(params)
    assert len(run_checks.find_writers(params)) == 1
