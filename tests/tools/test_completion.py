import os
import pathlib
import subprocess
import sys

import pytest

from official_lite.tools import __main__ as tools
from tests import commands

pytest.importorskip("shtab")

# Prints the completions of a command line as one line.
PRINT = """
COMP_WORDS=({words}) COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 )) COMPREPLY=()
_official_lite_{function}
echo "${{COMPREPLY[*]}}"
"""


def _script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert tools.main(["completion", shell]) == 0
    return capsys.readouterr().out


COMPLETIONS = [
    ("tools", "official-lite ch", {"checkpoints"}),
    ("tools", "official-lite checkpoints in", {"inspect"}),
    ("tools", "official-lite experiments show vision/digits_m", {"vision/digits_mlp"}),
    ("python", "python -m official_lite.tools ru", {"runs"}),
    ("python", "python train.py --mode = tra", {"train", "train_and_eval"}),
    ("python", "python train.py --mode =", {"eval", "search"}),
    ("train", "train.py --experiment = vision/digits_m", {"vision/digits_mlp"}),
    ("train", "train.py --exp", {"--experiment"}),
    ("tools", "official-lite train --mode = ev", {"eval"}),
    ("python", "python other.py --exp", set()),
]


def test_bash_completion_covers_commands_flags_and_experiments(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script"
    script.write_text(_script("bash", capsys))
    lines = [PRINT.format(function=function, words=words) for function, words, _ in COMPLETIONS]
    path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", "".join([f'source "{script}"\n', *lines])],
        capture_output=True,
        text=True,
        cwd=commands.ROOT,
        env={**os.environ, "PATH": path},
    )
    answers = [{*line.split()} for line in done.stdout.splitlines()]
    assert len(answers) == len(COMPLETIONS), done.stderr
    for (_, words, wanted), answer in zip(COMPLETIONS, answers, strict=True):
        assert wanted <= answer, words


def test_zsh_and_fish_completion_scripts_contain_all_commands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for shell in ("zsh", "fish"):
        script = _script(shell, capsys)
        assert [name for name in tools.commands() if name not in script] == []
        assert "train_and_post_eval" in script
