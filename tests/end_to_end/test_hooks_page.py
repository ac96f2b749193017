"""The pages on hooks and on plain loops tell the truth."""

import pathlib
import re

import pytest

from official_lite.core import hook_factory
from tests import commands

PAGE = (commands.ROOT / "docs" / "hooks.md").read_text()


def _python(*args: str, cwd: pathlib.Path) -> str:
    done = commands.run(args, cwd=cwd, env={"PYTHONPATH": str(commands.ROOT)})
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_driver_of_the_page_trains_with_its_hook(tmp_path: pathlib.Path) -> None:
    (driver,) = re.findall(r"<!-- driver -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "driver.py").write_text(driver)
    printed = _python("driver.py", "run", cwd=tmp_path)
    assert printed.splitlines() == ["iteration 99", "iteration 199"]
    assert (tmp_path / "run" / "ckpt-200.index").exists()


@pytest.mark.slow
def test_task_trains_in_a_loop_of_its_own(tmp_path: pathlib.Path) -> None:
    printed = _python(str(commands.ROOT / "docs" / "plain_loop.py"), cwd=tmp_path)
    assert float(printed.removeprefix("accuracy ")) > 0.9
    assert list(tmp_path.iterdir()) == []


def test_page_names_every_shipped_hook() -> None:
    table = PAGE[PAGE.index("## Shipped hooks") : PAGE.index("## In the graph")]
    named = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    shipped = {name for name, spec in hook_factory._HOOKS.items() if isinstance(spec, str)}
    assert named == shipped
