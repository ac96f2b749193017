"""The checks of a run's files; how each tampering is found is in `tests/tools/test_verify.py`."""

import pathlib

import pytest

from official_lite.common import errors
from official_lite.tools import verify


def test_line_names_the_file_what_was_recorded_and_what_was_found() -> None:
    broken = verify.Check(
        link="config", state=verify.BROKEN, file="params.yaml", recorded="a", found="b"
    )
    assert str(broken).split() == [
        "BROKEN",
        "config",
        *["params.yaml:", "recorded", "a,", "found", "b"],
    ]


def test_directory_without_a_run_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.CheckpointError, match="has not started"):
        list(verify.check_links(str(tmp_path)))
