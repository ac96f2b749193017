import os
import pathlib
import subprocess
import sys

import pytest

from official_lite.tools import __main__ as tools
from tests import commands

pytest.importorskip("shtab")

PRINT = """
source "{script}"
COMP_WORDS=({words}) COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_official_lite_{function}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def _script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert tools.main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("function", "words", "wanted"),
    [
        ("tools", "official-lite ch", {"checkpoints"}),
        ("tools", "official-lite checkpoints in", {"inspect"}),
        ("tools", "official-lite experiments show vision/digits_m", {"vision/digits_mlp"}),
        ("python", "python -m official_lite.tools ru", {"runs"}),
        ("python", "python train.py --mode = tra", {"train", "train_and_eval"}),
        ("python", "python train.py --mode =", {"eval", "search"}),
        ("train", "train.py --experiment = vision/digits_m", {"vision/digits_mlp"}),
        ("train", "train.py --exp", {"--experiment"}),
        ("tools", "official-lite train --mode = ev", {"eval"}),
        ("python", "python other.py --exp", {""}),
    ],
)
def test_bash_completes(
    function: str,
    words: str,
    wanted: set[str],
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = tmp_path / "script"
    script.write_text(_script("bash", capsys))
    code = PRINT.format(script=script, words=words, function=function)
    path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", code],
        capture_output=True,
        text=True,
        cwd=commands.ROOT,
        env={**os.environ, "PATH": path},
    )
    assert wanted <= {*done.stdout.split("\n")}, done.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_scripts_with_all_commands(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    script = _script(shell, capsys)
    assert all(name in script for name in tools.commands())
    assert "train_and_post_eval" in script
