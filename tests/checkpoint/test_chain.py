"""Tests of a directory's checkpoint chain: its lines, and its repair after a process is killed."""

import hashlib
import json
import pathlib

import pytest
import tensorflow as tf

from official_lite.checkpoint import chain, commit, committed_checkpoint_manager


@pytest.fixture
def save(tmp_path: pathlib.Path):
    """Return a function that saves checkpoints with a chain and keeps the last two."""
    step = tf.Variable(0)
    chain.append(str(tmp_path), "record", {})
    manager = committed_checkpoint_manager.CommittedCheckpointManager(
        tf.train.Checkpoint(step=step),
        str(tmp_path),
        max_to_keep=2,
        seal=lambda: chain.read(str(tmp_path))[0].sha256,
    )

    def save(*numbers: int):
        for number in numbers:
            step.assign(number)
            manager.save(number)
        return manager

    return save


def _kinds(directory: pathlib.Path) -> list[tuple[str, str]]:
    return [(link.kind, link.checkpoint) for link in chain.read(str(directory))]


def test_commit_file_contains_the_checksums_of_the_previous_checkpoint_and_the_run_record(
    save, tmp_path
):
    save(1, 2)
    record, first, second = chain.read(str(tmp_path))
    found = commit.read(str(tmp_path / "ckpt-2"))
    assert found.chain == {"previous": first.entries["sha256"], "record": record.sha256}
    assert second.entries["sha256"] == commit.checksum(str(tmp_path / "ckpt-2"))
    assert second.entries["after"] == first.sha256
    assert set(found.sha256) == set(found.files)


def test_checkpoint_chain_records_each_removed_checkpoint_and_lists_the_others(save, tmp_path):
    save(1, 2, 3)
    assert _kinds(tmp_path)[-2:] == [("checkpoint", "ckpt-3"), ("removed", "ckpt-1")]
    assert list(chain.listed(chain.read(str(tmp_path)))) == ["ckpt-2", "ckpt-3"]


def test_checkpoint_saved_after_a_restore_names_the_restored_checkpoint_as_previous(save, tmp_path):
    save(1, 2).restore(str(tmp_path / "ckpt-1"))
    save(3)
    links = [link for link in chain.read(str(tmp_path)) if link.kind == "checkpoint"]
    first, second, third = (link.entries for link in links)
    assert second["previous"] == third["previous"] == first["sha256"]


def test_checkpoint_chain_is_repaired_when_its_last_line_is_missing_or_incomplete(save, tmp_path):
    save(1, 2)
    path = tmp_path / chain.FILE
    whole = path.read_text()
    lines = whole.splitlines(keepends=True)
    for left in ("".join(lines[:-1]), whole[:-5]):
        path.write_text(left)
        chain.repair(str(tmp_path))
        assert path.read_text() == whole


def test_repairing_the_checkpoint_chain_adds_no_line_for_an_edited_commit_file(save, tmp_path):
    save(1, 2)
    path = tmp_path / "ckpt-2.commit.json"
    path.write_text(json.dumps(json.loads(path.read_text())))
    before = _kinds(tmp_path)
    chain.repair(str(tmp_path))
    assert _kinds(tmp_path) == before


def test_repairing_the_checkpoint_chain_records_a_checkpoint_that_was_deleted_by_hand(
    save, tmp_path
):
    save(1, 2)
    commit.remove_checkpoint(str(tmp_path / "ckpt-1"))
    chain.repair(str(tmp_path))
    last = chain.read(str(tmp_path))[-1]
    assert (last.kind, last.checkpoint, last.entries["reason"]) == ("removed", "ckpt-1", "by hand")


def test_repairing_a_missing_checkpoint_chain_adds_the_existing_checkpoints(tmp_path):
    tf.train.Checkpoint(step=tf.Variable(1)).write(str(tmp_path / "ckpt-1"))
    commit.write(str(tmp_path / "ckpt-1"))
    chain.repair(str(tmp_path))
    (line,) = chain.read(str(tmp_path))
    assert line.entries["adopted"] is True
    assert line.entries["after"] is None


def _named_config(prefix: pathlib.Path) -> str:
    """Return the name of the config that an error about a checkpoint recommends."""
    sentence = chain.config_of_run(str(prefix))
    return sentence and pathlib.Path(sentence.partition("--config_file=")[2].split()[0]).name


def test_checkpoint_error_in_a_run_without_a_checkpoint_chain_recommends_the_newest_config_file(
    tmp_path,
):
    best = tmp_path / "best" / "ckpt-3"
    assert _named_config(best) == ""
    for name in ("params.yaml", "params.2.yaml", "params.10.yaml"):
        (tmp_path / name).touch()
        assert _named_config(best) == name


@pytest.mark.parametrize("is_first_kept", [True, False], ids=["kept", "replaced"])
def test_checkpoint_error_recommends_the_config_file_of_the_checkpoint_or_the_next_existing_one(
    tmp_path, is_first_kept
):
    configs = {"params.1.yaml": "a", "params.2.yaml": "b", "params.yaml": "c"}
    for name, text in configs.items():
        (tmp_path / name).write_text(text)
    first = "a" if is_first_kept else "changed harmlessly since"
    checksums = [hashlib.sha256(text.encode()).hexdigest() for text in (first, "b", "c")]
    records = [
        chain.append(str(tmp_path), "record", {"params_sha256": checksum}) for checksum in checksums
    ]
    for step, record in enumerate(records):
        prefix = tmp_path / f"ckpt-{step}"
        _write(prefix)
        commit.write(str(prefix), chain={"previous": None, "record": record})
    expected = ["params.1.yaml" if is_first_kept else "params.2.yaml", "params.2.yaml"]
    assert [_named_config(tmp_path / f"ckpt-{step}") for step in range(3)] == [
        *expected,
        "params.yaml",
    ]


def _write(prefix: pathlib.Path) -> None:
    """Write a checkpoint without a chain, as older versions do."""
    tf.train.Checkpoint(step=tf.Variable(1)).write(str(prefix))
    commit.write(str(prefix))


def _cut(path: pathlib.Path) -> None:
    path.write_bytes(path.read_bytes()[:9])


def _replace_by_directory(path: pathlib.Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("damage", "has_chain"), [(_cut, False), (_cut, True), (_replace_by_directory, True)]
)
def test_repaired_checkpoint_chain_includes_older_checkpoints_unless_their_commit_file_is_damaged(
    tmp_path, damage, has_chain
):
    if has_chain:
        chain.append(str(tmp_path), "record", {})
    _write(tmp_path / "ckpt-1")
    _write(tmp_path / "ckpt-2")
    damage(tmp_path / "ckpt-2.commit.json")
    chain.repair(str(tmp_path))
    (adopted,) = chain.listed(chain.read(str(tmp_path))).values()
    assert (adopted.checkpoint, adopted.entries["adopted"]) == ("ckpt-1", True)
