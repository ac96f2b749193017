import pathlib

from official_lite.checkpoint import commit

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


def test_only_what_is_unfinished_goes(tmp_path: pathlib.Path) -> None:
    for name in UNFINISHED + OTHERS:
        (tmp_path / name).touch()
    for name in ("ckpt-3_temp", "my_ckpt-3_temp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part-00000").touch()
    commit.remove(str(tmp_path), "ckpt")
    assert _names(tmp_path) == {*OTHERS, "my_ckpt-3_temp"}


def test_without_any_commit_file_checkpoints_stay(tmp_path: pathlib.Path) -> None:
    (tmp_path / "ckpt-3.index").touch()
    (tmp_path / "ckpt-4_temp").mkdir()
    commit.remove(str(tmp_path), "ckpt")
    assert _names(tmp_path) == {"ckpt-3.index"}


def test_directory_need_not_exist(tmp_path: pathlib.Path) -> None:
    commit.remove(str(tmp_path / "nowhere"), "ckpt")
    assert not (tmp_path / "nowhere").exists()
