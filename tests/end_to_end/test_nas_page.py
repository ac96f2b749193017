"""The page on architecture search tells the truth."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "nas.md").read_text()


@pytest.mark.slow
def test_driver_of_the_page_searches_and_trains_what_it_found(tmp_path: pathlib.Path) -> None:
    (driver,) = re.findall(r"<!-- driver -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "driver.py").write_text(driver)
    done = subprocess.run(
        [sys.executable, "driver.py", "search", "found"],
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith(("found", "layers"))]
    assert lines == ["found {'hidden': 'relu'}", "layers ['InputLayer', 'Dense', 'Dense']"]
