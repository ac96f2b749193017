import pathlib

import pytest

from benchmarks import chaos

# Writes two records at once, and then waits for the kill.
TRAIN = """
import json
import pathlib
import signal
import sys
import time

model_dir = pathlib.Path(sys.argv[-1].partition("=")[2])
model_dir.mkdir()
records = [{"step": step, "wall_time": time.time()} for step in (10, 20)]
(model_dir / "metrics.json").write_text("".join(json.dumps(each) + "\\n" for each in records))
signal.pause()
"""


@pytest.mark.parametrize("step", [0, 10])
def test_fast_run_in_the_kill_test_is_killed_as_soon_as_its_next_metric_record_appears(
    step: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    training = chaos.Training([], tmp_path / "run")
    kill = chaos.Kill(step, next_step=20, seconds=1e6)
    assert not training.run(kill)
