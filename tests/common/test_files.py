import os
import pathlib
import threading

from official_lite.common import files


def test_written_text_reads_back(tmp_path: pathlib.Path) -> None:
    path = os.fspath(tmp_path / "a" / "b.txt")
    files.makedirs(os.path.dirname(path))
    files.write_text(path, "größe\n")
    assert files.exists(path)
    assert files.read_text(path) == "größe\n"


def test_reader_never_sees_a_part(tmp_path: pathlib.Path) -> None:
    path, texts = os.fspath(tmp_path / "x"), ("a" * 100_000, "b" * 100_000)
    files.write_text(path, texts[0])
    seen = set()
    writer = threading.Thread(target=lambda: [files.write_text(path, t) for t in texts * 20])
    writer.start()
    while writer.is_alive():
        seen.add(files.read_text(path))
    assert seen <= set(texts)
    assert os.listdir(tmp_path) == ["x"]


def test_remote_paths_are_recognized() -> None:
    assert files.is_remote("gs://bucket/run")
    assert not files.is_remote("/tmp/run")
