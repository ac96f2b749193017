import pytest

from official_lite.telemetry import text_file_writers


@pytest.mark.parametrize(
    ("before", "kept"),
    [("", ""), ("one\n", "one\n"), ("one\ntw", "one\n"), ("on", ""), ("é\né", "é\n")],
)
def test_torn_last_line_is_removed(tmp_path, before, kept):
    path = tmp_path / "lines"
    path.write_text(before, encoding="utf-8")
    file = text_file_writers.LineFile(path)
    file.append("next")
    file.close()
    assert path.read_text(encoding="utf-8") == kept + "next\n"


def test_line_is_there_before_close_and_after_it(tmp_path):
    file = text_file_writers.LineFile(tmp_path / "new" / "lines")
    file.append("one")
    assert (tmp_path / "new" / "lines").read_text() == "one\n"
    file.close()
    file.append("two")
    file.close()
    assert (tmp_path / "new" / "lines").read_text() == "one\ntwo\n"


def test_lost_lines_are_warned_of_once_until_one_is_written(tmp_path, monkeypatch, caplog):
    def fail(path, mode):
        raise OSError("disk full")

    file = text_file_writers.LineFile(tmp_path / "lines")
    for count in (1, 2):
        with monkeypatch.context() as context:
            context.setattr(text_file_writers.files, "open_file", fail)
            for _ in range(3):
                file.append("lost")
        assert caplog.text.count("so lines are lost: disk full") == count
        file.append("kept")
        file.close()
    assert (tmp_path / "lines").read_text() == "kept\nkept\n"


def test_lines_are_flushed_to_the_disk_once(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("os.fsync", synced.append)
    file = text_file_writers.LineFile(tmp_path / "lines")
    file.sync()
    file.append("one")
    assert not synced
    file.sync()
    file.sync()
    assert len(synced) == 1
