"""The page on checkpoints shows code that works."""

import pathlib
import re

import pytest

from official_lite.config import compatibility

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "checkpoints.md"


def test_loop_of_ones_own_saves_and_restores(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for number in (1, 2):
        exec(block, {})
        assert capsys.readouterr().out == f"runs/mine/ckpt-{number}\n"


@pytest.mark.parametrize(
    "path",
    ["trainer.train_epochs", "trainer.writers", "runtime.devices", "task.init_checkpoint_strict"],
)
def test_what_the_page_calls_harmless_is(path: str) -> None:
    assert compatibility.Change(path=path, old=1, new=2).is_harmless
