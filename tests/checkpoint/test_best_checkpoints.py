import json
import os

import pytest
import tensorflow as tf

from official_lite.checkpoint import best_checkpoints, commit


@pytest.fixture
def checkpoint():
    return tf.train.Checkpoint(v=tf.Variable(1.0))


@pytest.fixture
def keep(tmp_path, checkpoint):
    """Return a function that opens the directory, as a starting run does, and saves at `steps`."""

    def keep(*steps, rewound_to=None):
        best = best_checkpoints.BestCheckpoints(str(tmp_path))
        if rewound_to is not None:
            best.rewind(rewound_to)
        for step in steps:
            best.save(checkpoint, step, {"accuracy": step / 100})
        return best

    return keep


def _steps(tmp_path):
    return sorted(commit.step_of(path) for path in commit.list_committed(str(tmp_path)))


def _info(tmp_path):
    return json.loads((tmp_path / "info.json").read_text())


def test_non_chief_worker_writes_nothing_to_the_shared_best_checkpoint_directory(
    keep, tmp_path, monkeypatch
):
    extended = type(tf.distribute.get_strategy().extended)
    monkeypatch.setattr(extended, "should_checkpoint", property(lambda self: False))
    keep(10)
    assert os.listdir(tmp_path) == []


def test_only_the_best_checkpoint_is_kept_and_a_restart_reads_its_value(keep, tmp_path):
    keep(10, 20)
    assert _steps(tmp_path) == [20]
    assert keep().best == _info(tmp_path) == {"accuracy": 0.2, "best_ckpt_global_step": 20}


def test_rewind_to_an_earlier_step_restores_the_best_checkpoint_of_that_step(keep, tmp_path):
    best = keep(10, rewound_to=0)
    best.protect()
    best.settle(15)
    best.save(tf.train.Checkpoint(), 20, {"accuracy": 0.2})
    best.save(tf.train.Checkpoint(), 30, {"accuracy": 0.3})
    assert _steps(tmp_path) == [10, 30]
    restarted = keep(rewound_to=15)
    assert restarted.best["best_ckpt_global_step"] == _info(tmp_path)["best_ckpt_global_step"] == 10
    assert _steps(tmp_path) == [10]
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "best_ckpt-10")


def test_previous_best_checkpoint_is_removed_once_no_training_checkpoint_needs_it(keep, tmp_path):
    best = keep(10, rewound_to=0)
    best.protect()
    best.save(tf.train.Checkpoint(), 20, {"accuracy": 0.2})
    # A training checkpoint that needs the best checkpoint of step 10 may not be complete yet.
    assert _steps(tmp_path) == [10, 20]
    best.settle(10)
    assert _steps(tmp_path) == [10, 20]
    best.protect()
    best.settle(20)
    assert _steps(tmp_path) == [20]
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "best_ckpt-20")


def test_best_checkpoints_superseded_between_training_checkpoints_are_removed(keep, tmp_path):
    keep(10, 20, 30, 40, rewound_to=0)
    assert _steps(tmp_path) == [40]


def test_rewind_restores_the_best_metric_value_even_if_its_checkpoint_was_removed(keep, tmp_path):
    keep(10, 20, 30)
    best = keep(rewound_to=20)
    assert best.best["accuracy"] == 0.2
    # A later best checkpoint is kept until a new best checkpoint replaces it.
    assert _steps(tmp_path) == [30]
    best.save(tf.train.Checkpoint(), 25, {"accuracy": 0.25})
    assert _steps(tmp_path) == [25]


@pytest.mark.parametrize("killed_at", ["best_ckpt-20.commit.json", "info.json"])
def test_kill_during_a_save_leaves_a_best_checkpoint_that_matches_info_json(
    keep, checkpoint, tmp_path, monkeypatch, killed_at
):
    def killed(source, target):
        if os.path.basename(target) == killed_at:
            raise KeyboardInterrupt
        rename(source, target)

    best = keep(10, rewound_to=10)
    rename = os.replace
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", killed)
        # A killed process removes no files either.
        patch.setattr("official_lite.common.files.remove", lambda path: None)
        patch.setattr("official_lite.checkpoint.commit.remove_checkpoint", lambda path: None)
        with pytest.raises(KeyboardInterrupt):
            best.save(checkpoint, 20, {"accuracy": 0.2})
    seen = keep().best["best_ckpt_global_step"]
    assert seen in _steps(tmp_path)
    assert seen == (20 if killed_at == "info.json" else 10)
    restarted = keep(rewound_to=10)
    assert (restarted.best, _steps(tmp_path)) == (_info(tmp_path), [10])
    assert not list(tmp_path.glob("*.tmp"))
    assert not list(tmp_path.glob("best_ckpt-20*"))


@pytest.mark.parametrize("text", ["[1]", "\xff", '{"accuracy": 0.9}'])
def test_rewind_rewrites_a_damaged_best_checkpoint_info_file(keep, tmp_path, text):
    keep(10)
    (tmp_path / "info.json").write_text(text, encoding="latin-1")
    assert keep(rewound_to=10).best["accuracy"] == _info(tmp_path)["accuracy"] == 0.1


def test_model_garden_info_file_is_used_unless_its_step_is_after_the_rewind(keep, tmp_path):
    # The Model Garden and older versions write the step as a float.
    (tmp_path / "info.json").write_text('{"accuracy": 0.9, "best_ckpt_global_step": 20.0}')
    assert keep(rewound_to=30).best == {"accuracy": 0.9, "best_ckpt_global_step": 20}
    assert keep(rewound_to=10).best is None


def test_max_to_keep_limits_the_number_of_best_checkpoints(tmp_path, checkpoint):
    best = best_checkpoints.BestCheckpoints(str(tmp_path), max_to_keep=2)
    for step in (10, 20, 30):
        best.save(checkpoint, step, {})
    assert _steps(tmp_path) == [20, 30]
    best.rewind(25)
    assert _steps(tmp_path) == [20]
