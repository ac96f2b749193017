import json
import os
import pathlib

import pytest
import tensorflow as tf

from official_lite.checkpoint import commit


@pytest.fixture
def prefix(tmp_path: pathlib.Path) -> str:
    return tf.train.Checkpoint(v=tf.Variable([1.0, 2.0])).write(str(tmp_path / "ckpt-7"))


def test_commit_file_lists_the_checkpoint_files_and_the_run_description(prefix: str) -> None:
    written = commit.write(prefix, {"optimizer": {"class": "SGD"}})
    assert commit.read(prefix) == written
    assert written.step == 7
    assert set(written.files) == {"ckpt-7.index", "ckpt-7.data-00000-of-00001"}
    assert written.total_size == sum(
        p.stat().st_size for p in pathlib.Path(prefix).parent.glob("ckpt-7.[di]*")
    )
    assert commit.find_damage(prefix) is None


def test_all_files_are_synced_to_disk_before_the_commit_file_exists(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        events.append(f"sync {path.removeprefix(prefix).removesuffix('.tmp')}")
        fsync(descriptor)

    def record_replace(source: str, target: str) -> None:
        events.append(f"rename {source.removeprefix(prefix).removesuffix('.tmp')}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    commit.write(prefix)
    *synced, temporary, renamed = events
    assert sorted(synced) == ["sync .data-00000-of-00001", "sync .index"]
    assert temporary.startswith("sync .commit.json.")
    assert renamed == temporary.replace("sync", "rename")


@pytest.mark.parametrize(
    ("file", "content", "damage"),
    [
        ("data-00000-of-00001", b"abc", "3 bytes"),
        ("data-00000-of-00001", None, "is missing"),
        ("index", b"", "0 bytes"),
        ("commit.json", b'{"step": 7, "other": 1}', "is damaged"),
    ],
)
def test_damage_report_names_a_missing_or_truncated_checkpoint_file_and_a_damaged_commit_file(
    prefix: str, file: str, content: bytes | None, damage: str
) -> None:
    assert commit.read(prefix) is None
    assert commit.find_damage(prefix) is None, "nothing is known without a commit file"
    commit.write(prefix)
    path = pathlib.Path(f"{prefix}.{file}")
    path.unlink() if content is None else path.write_bytes(content)
    assert damage in str(commit.find_damage(prefix))


def test_changed_index_file_of_the_same_size_counts_as_a_damaged_checkpoint(prefix: str) -> None:
    commit.write(prefix)
    index = pathlib.Path(f"{prefix}.index")
    content = bytearray(index.read_bytes())
    content[10] ^= 1
    index.write_bytes(content)
    assert "checksum" in str(commit.find_damage(prefix))


def test_file_names_in_a_commit_file_cannot_point_outside_its_directory(prefix: str) -> None:
    commit.write(prefix)
    path = pathlib.Path(commit.path_of(prefix))
    content = json.loads(path.read_text())
    content["files"] = {"../../etc/passwd": 1}
    path.write_text(json.dumps(content))
    assert commit.find_damage(prefix) == "../../etc/passwd is missing"


def test_committed_checkpoints_are_listed_in_order_of_their_steps(tmp_path: pathlib.Path) -> None:
    for name in ("ckpt-9", "ckpt-10", "best-3", "ckpt-x"):
        (tmp_path / f"{name}.commit.json").touch()
    listed = commit.list_committed(str(tmp_path), "ckpt")
    assert listed == [str(tmp_path / "ckpt-9"), str(tmp_path / "ckpt-10")]
    assert len(commit.list_committed(str(tmp_path))) == 3
    assert commit.list_committed(str(tmp_path / "nowhere")) == []


def test_commit_file_is_removed_before_the_files_that_it_lists(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit.write(prefix)
    removed: list[str] = []
    monkeypatch.setattr(commit.files, "remove", removed.append)
    commit.remove_checkpoint(prefix)
    assert removed[0] == commit.path_of(prefix)
    assert len(removed) == 3


UNFINISHED = [
    "ckpt-3.data-00000-of-00002",
    "ckpt-3.index",
    "ckpt-2.commit.json.0123456789abcdef0123456789abcdef.tmp",
    "checkpoint.tmp0123456789abcdef0123456789abcdef",
]
OTHERS = [
    "ckpt-2.index",
    "ckpt-2.data-00000-of-00001",
    "ckpt-2.commit.json",
    "checkpoint",
    "best-4.index",
    "ckpt-notes.index",
    "my_ckpt-3.index",
    "params.yaml",
]


def _names(directory: pathlib.Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_only_unfinished_checkpoints_with_the_requested_name_are_deleted(
    tmp_path: pathlib.Path,
) -> None:
    for name in UNFINISHED + OTHERS:
        (tmp_path / name).touch()
    for name in ("ckpt-3_temp", "my_ckpt-3_temp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part-00000").touch()
    commit.remove(str(tmp_path), "ckpt")
    assert _names(tmp_path) == {*OTHERS, "my_ckpt-3_temp"}


def test_checkpoints_in_a_directory_without_commit_files_are_not_deleted_as_unfinished(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "ckpt-3.index").touch()
    (tmp_path / "ckpt-4_temp").mkdir()
    commit.remove(str(tmp_path), "ckpt")
    assert _names(tmp_path) == {"ckpt-3.index"}
    commit.remove(str(tmp_path / "nowhere"), "ckpt")
    assert not (tmp_path / "nowhere").exists()
