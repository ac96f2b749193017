"""The page on architecture search tells the truth."""

import pathlib
import re

import pytest

from tests import commands

PAGE = (commands.ROOT / "docs" / "nas.md").read_text()


@pytest.mark.slow
def test_driver_of_the_page_searches_and_trains_what_it_found(tmp_path: pathlib.Path) -> None:
    (driver,) = re.findall(r"<!-- driver -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "driver.py").write_text(driver)
    paths = {"PYTHONPATH": str(commands.ROOT)}
    done = commands.run(["driver.py", "search", "found"], cwd=tmp_path, env=paths)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith(("found", "layers"))]
    assert lines == ["found {'hidden': 'relu'}", "layers ['InputLayer', 'Dense', 'Dense']"]
