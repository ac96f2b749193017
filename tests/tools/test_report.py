"""Tests of `python -m official_lite.tools report`."""

from official_lite.tools import __main__ as tools
from tests import made_runs


def test_report_command_writes_the_page_and_prints_its_path(tmp_path, capsys) -> None:
    run = made_runs.make_run(tmp_path / "digits")
    output = tmp_path / "pages" / "digits.html"
    assert tools.main(["report", str(run), "--output", str(output), "--title", "A & B"]) == 0
    assert capsys.readouterr().out.strip() == str(output)
    text = output.read_text()
    assert "<title>A &amp; B</title>" in text
    # The page refers to nothing on the network; its only URLs are XML namespaces.
    assert text.count("http") == text.count("http-equiv") + text.count("http://www.w3.org/2000/svg")


def test_report_exits_with_code_2_if_the_output_file_cannot_be_written(tmp_path, capsys) -> None:
    run = made_runs.make_run(tmp_path / "digits")
    (tmp_path / "file").write_text("")
    assert tools.main(["report", str(run), "--output", str(tmp_path / "file" / "p.html")]) == 2
    assert "can't be written" in capsys.readouterr().err
