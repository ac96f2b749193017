"""The choice of the segment to replay."""

import pathlib

import pytest

from official_lite.common import errors
from official_lite.tools import verify

SEGMENTS = [("/run/ckpt-4", "/run/ckpt-8"), ("/run/ckpt-8", "/run/ckpt-12")]


@pytest.mark.parametrize(("step", "expected"), [(None, SEGMENTS[1]), (4, SEGMENTS[0])])
def test_newest_segment_is_replayed_or_the_one_that_was_asked_for(
    step: int | None, expected: tuple[str, str]
) -> None:
    assert verify.choose(SEGMENTS, step) == expected


def test_other_step_is_answered_with_those_that_can_be_replayed() -> None:
    with pytest.raises(errors.CheckpointError, match="can be 4, 8"):
        verify.choose(SEGMENTS, 5)


@pytest.mark.parametrize(("strategy", "expected"), [("mirrored", False), ("tpu", True)])
def test_run_of_several_processes_is_known_by_its_config(
    tmp_path: pathlib.Path, strategy: str, expected: bool
) -> None:
    (tmp_path / "params.yaml").write_text(f"runtime: {{distribution_strategy: {strategy}}}\n")
    assert verify.needs_a_cluster(str(tmp_path)) == expected
