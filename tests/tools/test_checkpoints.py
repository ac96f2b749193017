import json
import pathlib

import pytest
import tensorflow as tf

from official_lite.checkpoint import committed_checkpoint_manager
from official_lite.tools import __main__ as tools


@pytest.fixture
def model_dir(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return a directory with checkpoints of steps 1 and 2 and a best checkpoint."""
    weight = tf.Variable([1.0, 2.0])
    checkpoint = tf.train.Checkpoint(weight=weight, bias=tf.Variable(0.5))
    manager = committed_checkpoint_manager.CommittedCheckpointManager(
        checkpoint, str(tmp_path), max_to_keep=3
    )
    manager.save(checkpoint_number=1)
    weight.assign([1.0, 4.0])
    manager.save(checkpoint_number=2)
    committed_checkpoint_manager.CommittedCheckpointManager(
        checkpoint, str(tmp_path / "best_ckpt"), max_to_keep=1, checkpoint_name="best_ckpt"
    ).save(checkpoint_number=2)
    return tmp_path


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> object:
    assert tools.main(["checkpoints", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_checkpoints_list_includes_subdirectories_and_reports_damage(
    model_dir: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = _json(capsys, "list", str(model_dir))
    assert [(row["name"], row["step"], row["state"]) for row in rows] == [
        ("ckpt-1", 1, "sound"),
        ("ckpt-2", 2, "sound"),
        ("best_ckpt/best_ckpt-2", 2, "sound"),
    ]
    assert all(row["bytes"] > 100 and row["saved"] > 1e9 for row in rows)
    (model_dir / "ckpt-2.index").write_bytes(b"")
    assert tools.main(["checkpoints", "list", str(model_dir)]) == 5
    assert "0 bytes" in capsys.readouterr().out


def test_checkpoints_inspect_shows_the_latest_checkpoint_and_reports_damage(
    model_dir: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = _json(capsys, "inspect", str(model_dir))
    assert (document["step"], document["num_parameters"], document["bytes"]) == (2, 3, 12)
    (weight,) = (each for each in document["variables"] if each["name"] == "weight")
    assert weight == {
        "name": "weight",
        "key": "weight",
        "shape": [2],
        "dtype": "float32",
        "bytes": 8,
        "not_finite": 0,
    }
    assert tools.main(["checkpoints", "inspect", f"{model_dir}/ckpt-1.index"]) == 0
    assert "Intact: every tensor is readable.\n" in capsys.readouterr().out
    (data,) = model_dir.glob("ckpt-1.data-*")
    data.write_bytes(bytes(len(data.read_bytes())))
    assert tools.main(["checkpoints", "inspect", f"{model_dir}/ckpt-1"]) == 5
    assert "DAMAGED: weight can't be read" in capsys.readouterr().out


def test_checkpoints_diff_shows_how_much_variables_differ(
    model_dir: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [f"{model_dir}/ckpt-1", f"{model_dir}/ckpt-2"]
    assert tools.main(["checkpoints", "diff", *paths]) == 0
    head, row, *_, counts = capsys.readouterr().out.splitlines()
    assert head.split() == ["name", "state", "shape_a", "dtype_a", "max_abs", "relative"]
    assert row.split() == ["weight", "differs", "[2]", "float32", "2", "1"]
    assert counts == "0 only in a, 0 only in b, 1 differs, 1 equal"
    document = _json(capsys, "diff", *paths, "--all")
    assert (document["num_equal"], len(document["variables"])) == (1, 2)


def test_error_for_a_missing_checkpoint_suggests_the_nearest_one(
    model_dir: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tools.main(["checkpoints", "inspect", f"{model_dir}/ckpt-3"]) == 5
    assert f"`{model_dir}/ckpt-2`" in capsys.readouterr().err
