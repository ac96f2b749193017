import json
import os
import pathlib

import pytest
import tensorflow as tf

from official_lite.checkpoint import commit


@pytest.fixture
def prefix(tmp_path: pathlib.Path) -> str:
    return tf.train.Checkpoint(v=tf.Variable([1.0, 2.0])).write(str(tmp_path / "ckpt-7"))


def test_commit_says_what_was_written(prefix: str) -> None:
    written = commit.write(prefix, {"optimizer": {"class": "SGD"}})
    assert commit.read(prefix) == written
    assert written.step == 7
    assert set(written.files) == {"ckpt-7.index", "ckpt-7.data-00000-of-00001"}
    assert written.total_size == sum(
        p.stat().st_size for p in pathlib.Path(prefix).parent.glob("ckpt-7.[di]*")
    )
    assert commit.find_damage(prefix) is None


def test_everything_is_on_the_disk_before_the_commit_file_exists(
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


def test_checkpoint_without_a_commit_file_says_nothing(prefix: str) -> None:
    assert commit.read(prefix) is None
    assert commit.find_damage(prefix) is None


@pytest.mark.parametrize(
    ("file", "content", "damage"),
    [
        ("index", b"", "0 bytes"),
        ("data-00000-of-00001", b"abc", "3 bytes"),
        ("data-00000-of-00001", None, "is missing"),
        ("commit.json", b"{", "is damaged"),
        ("commit.json", b'{"step": 7, "other": 1}', "is damaged"),
    ],
)
def test_damage_is_named(prefix: str, file: str, content: bytes | None, damage: str) -> None:
    commit.write(prefix)
    path = pathlib.Path(f"{prefix}.{file}")
    path.unlink() if content is None else path.write_bytes(content)
    assert damage in str(commit.find_damage(prefix))


def test_index_of_the_same_size_is_known_by_its_checksum(prefix: str) -> None:
    commit.write(prefix)
    index = pathlib.Path(f"{prefix}.index")
    content = bytearray(index.read_bytes())
    content[10] ^= 1
    index.write_bytes(content)
    assert "checksum" in str(commit.find_damage(prefix))


def test_file_names_do_not_lead_out_of_the_directory(prefix: str) -> None:
    commit.write(prefix)
    path = pathlib.Path(commit.path_of(prefix))
    content = json.loads(path.read_text())
    content["files"] = {"../../etc/passwd": 1}
    path.write_text(json.dumps(content))
    assert commit.find_damage(prefix) == "../../etc/passwd is missing"


def test_committed_ones_are_listed_by_their_numbers(tmp_path: pathlib.Path) -> None:
    for name in ("ckpt-9", "ckpt-10", "best-3", "ckpt-x"):
        (tmp_path / f"{name}.commit.json").touch()
    listed = commit.list_committed(str(tmp_path), "ckpt")
    assert listed == [str(tmp_path / "ckpt-9"), str(tmp_path / "ckpt-10")]
    assert len(commit.list_committed(str(tmp_path))) == 3
    assert commit.list_committed(str(tmp_path / "nowhere")) == []


def test_commit_file_goes_first(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    commit.write(prefix)
    removed: list[str] = []
    monkeypatch.setattr(commit.files, "remove", removed.append)
    commit.remove_checkpoint(prefix)
    assert removed[0] == commit.path_of(prefix)
    assert len(removed) == 3
