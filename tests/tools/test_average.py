"""`python -m official_lite.tools average`."""

import json
import os

from official_lite.tools import __main__ as tools


def test_last_checkpoints_of_a_run_are_averaged(trained, tmp_path, capsys):
    arguments = ["average", trained, "--last=2", f"--output={tmp_path / 'mean'}"]
    assert tools.main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {
        "path": str(tmp_path / "mean" / "ckpt-6"),
        "checkpoints": [os.path.join(trained, f"ckpt-{step}") for step in (4, 6)],
    }
    assert tools.main(arguments) == 0
    assert "The average of 2 checkpoints is" in capsys.readouterr().out


def test_mistakes_are_told(trained, capsys):
    assert tools.main(["average", trained, "--last=1"]) == 5
    assert tools.main(["average", trained, "--last=-1"]) == 2
    assert tools.main(["average", "vision/digits_mlp"]) == 2
    said = capsys.readouterr().err
    assert "wanted two" in said
    assert "can't be below 0" in said
    assert "has no checkpoints" in said
