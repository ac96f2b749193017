import json

import pytest

from official_lite import orbit
from official_lite.core import train_lib
from official_lite.nas import architecture


class _Fail(orbit.Hook):
    every_n_steps = 6

    def after_step(self) -> None:
        if self.iter >= 5:
            raise RuntimeError("broken")


def test_file_is_written_at_checkpoints_and_not_by_a_failure(
    experiment, toy_task, tmp_path
) -> None:
    params = experiment("darts")
    with pytest.raises(RuntimeError, match="broken"):
        train_lib.run_experiment(
            None, toy_task(params.task), "train", params, str(tmp_path), hooks=[_Fail()]
        )
    content = json.loads((tmp_path / "arch.json").read_text())
    assert content["step"] in (4, 6)
    assert set(content["arch"]) == {"first", "second"}
    step, probs = architecture.read_history(str(tmp_path))[-1]
    assert (step, probs) == (content["step"], content["probs"])
