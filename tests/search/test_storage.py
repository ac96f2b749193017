"""Storages of a study: a journal, SQLite and PostgreSQL."""

import contextlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
from collections.abc import Iterator

import pytest

from official_lite import search
from official_lite.common import errors
from official_lite.search import storage
from tests.search import toys

SERVER = shutil.which("postgres") or next(
    map(str, pathlib.Path("/usr/lib/postgresql").glob("*/bin/postgres")), None
)


@pytest.fixture
def postgresql(tmp_path_factory) -> Iterator[str]:
    """Yield the URL of a PostgreSQL server that is started for the test."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    if SERVER is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    if os.getuid() == 0 and not shutil.which("runuser"):
        pytest.skip("PostgreSQL does not run as root, and there is no runuser")
    with contextlib.ExitStack() as stack:
        yield _start_server(stack)


def _start_server(stack: contextlib.ExitStack) -> str:
    directory = pathlib.Path(os.path.realpath(SERVER)).parent
    # The user `postgres` has no access to pytest's directories, so create another directory.
    home = pathlib.Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    stack.callback(shutil.rmtree, home)
    as_user = []
    if os.getuid() == 0:
        shutil.chown(home, "postgres")
        as_user = ["runuser", "-u", "postgres", "--"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data = home / "data"
    subprocess.run(
        [*as_user, directory / "initdb", "-D", data, "-U", "optuna", "-A", "trust", "--no-sync"],
        check=True,
        capture_output=True,
        cwd=home,
    )
    options = f"-p {port} -c listen_addresses=127.0.0.1 -k {home} -c fsync=off"
    control = [*as_user, directory / "pg_ctl", "-D", data, "-w"]
    subprocess.run(
        [*control, "-o", options, "-l", home / "log", "start"],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=home,
    )
    stop = [*control, "-m", "immediate", "stop"]
    stack.callback(subprocess.run, stop, check=True, stdout=subprocess.DEVNULL, cwd=home)
    return f"postgresql+psycopg://optuna@127.0.0.1:{port}/postgres"


def _goes_on(url: str, study_dir: pathlib.Path) -> None:
    config = toys.config(storage=url, num_trials=2)
    search.run_study(toys.parabola, config, str(study_dir))
    more = toys.config(storage=url, num_trials=4, num_workers=2)
    study = search.run_study(toys.parabola, more, str(study_dir))
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 4
    assert len({trial.params["x"] for trial in study.trials}) == 4
    with pytest.raises(errors.ConfigValueError, match="is not in the storage"):
        search.run_study(toys.parabola, toys.config(), str(study_dir))
    # Two studies may share a database.
    other = search.run_study(toys.parabola, config, f"{study_dir}2")
    assert len(other.trials) == 2


@pytest.mark.slow
def test_study_in_sqlite_is_resumed_with_two_workers(tmp_path) -> None:
    _goes_on(f"sqlite:///{tmp_path}/study.db", tmp_path / "study")


@pytest.mark.slow
def test_study_in_postgresql_is_resumed_with_two_workers(postgresql: str, tmp_path) -> None:
    _goes_on(postgresql, tmp_path / "study")


def test_study_can_be_resumed_after_its_directory_has_been_moved(tmp_path) -> None:
    search.run_study(toys.parabola, toys.config(num_trials=2), str(tmp_path / "old"))
    (tmp_path / "old").rename(tmp_path / "new")
    study = search.run_study(toys.parabola, toys.config(num_trials=3), str(tmp_path / "new"))
    assert len(study.trials) == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"direction": "maximize"},
        {"space": {"y": [1, 2]}},
        {"final_value": "best"},
        {"mode": "train_and_post_eval"},
        {"evaluator": {"name": "tests.search.toys:fit", "target": 1.0}},
    ],
)
def test_resuming_a_study_with_a_different_objective_or_space_is_refused(fields, tmp_path) -> None:
    search.run_study(toys.parabola, toys.config(num_trials=1), str(tmp_path))
    with pytest.raises(errors.ConfigValueError, match="a study with a different config"):
        search.run_study(toys.parabola, toys.config(**fields), str(tmp_path))


def test_study_of_an_older_version_that_did_not_record_its_objective_can_be_resumed(
    tmp_path,
) -> None:
    config = toys.config(num_trials=1)
    study = search.run_study(toys.parabola, config, str(tmp_path))
    recorded = study.user_attrs[storage._ORIGIN]
    for name in ("final_value", "mode", "evaluator"):
        del recorded[f"search.{name}"]
    study.set_user_attr(storage._ORIGIN, recorded)
    more = toys.config(num_trials=2, final_value="best")
    assert len(search.run_study(toys.parabola, more, str(tmp_path)).trials) == 2


def test_resuming_a_study_with_a_changed_experiment_is_refused_unless_allowed(tmp_path) -> None:
    def run(rate: float, **allowed: bool) -> None:
        origin = {"trainer.rate": rate}
        search.run_study(toys.parabola, toys.config(), str(tmp_path), origin=origin, **allowed)

    run(0.1)
    with pytest.raises(errors.ConfigValueError, match=r"trainer.rate: 0.1 -> 0.2"):
        run(0.2)
    run(0.2, allow_config_change=True)


@pytest.mark.parametrize("url", ["mysql+nothing://x", "sqlite:////no/such/dir/a.db"])
def test_storage_that_cannot_be_opened_raises_a_config_error(url: str, tmp_path) -> None:
    with pytest.raises(errors.ConfigValueError, match="'study'"):
        storage.open_study(toys.config(), str(tmp_path))
    with pytest.raises(errors.ConfigValueError, match=r"search\.storage"):
        search.run_study(toys.parabola, toys.config(storage=url), str(tmp_path))


def test_storage_description_hides_the_user_name_and_password() -> None:
    assert storage._describe(toys.config(storage="mysql://me:secret@host/db")) == "mysql://host/db"


@pytest.mark.parametrize("rest", ['{"op_code":6,"work', '{"op_code"' + " " * 100_000])
def test_incomplete_last_line_of_the_journal_is_removed(tmp_path, rest):
    """A killed process or a full disk may leave an incomplete line."""
    study_dir = str(tmp_path / "study")
    search.run_study(toys.parabola, toys.config(num_trials=2), study_dir)
    with (tmp_path / "study" / "study.journal").open("a") as file:
        file.write(rest)
    search.run_study(toys.parabola, toys.config(num_trials=4), study_dir)
    study = search.run_study(toys.parabola, toys.config(num_trials=5), study_dir)
    assert [trial.number for trial in study.trials] == [0, 1, 2, 3, 4]
    lines = (tmp_path / "study" / "study.journal").read_text().splitlines()
    assert all(json.loads(line) for line in lines)


def test_full_disk_ends_the_study_without_failing_a_trial(tmp_path):
    config = toys.config(num_trials=3)
    with pytest.raises(errors.DiskFullError, match="could not be written"):
        search.run_study(toys.full_disk_in_the_third, config, str(tmp_path / "study"))
    study = search.run_study(toys.parabola, config, str(tmp_path / "study"))
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["", "sqlite"])
def test_eight_workers_run_each_of_hundreds_of_trials_exactly_once(tmp_path, name):
    url = f"sqlite:///{tmp_path}/study.db" if name else ""
    config = toys.config(storage=url, num_trials=300, num_workers=8)
    study = search.run_study(toys.parabola, config, str(tmp_path / "study"))
    assert [trial.number for trial in study.trials] == list(range(300))
    assert {trial.state.name for trial in study.trials} == {"COMPLETE"}
    assert all(trial.user_attrs["starts"] == 1 for trial in study.trials)
