"""The project in docs/porting.md is ported by one command and still trains."""

import re
from pathlib import Path

import pytest

from tests import commands
from tests.docs import blocks

BLOCKS = {block.comment: block.text for block in blocks.blocks_of("docs/porting.md")}


@pytest.mark.slow
def test_project_in_the_porting_docs_is_ported_by_one_command_and_trains(tmp_path: Path) -> None:
    project, model_dir = tmp_path / "project" / "blobs.py", tmp_path / "run"
    project.parent.mkdir()
    project.write_text(BLOCKS["project"])

    port = ["-m", "official_lite.tools", "port", project.parent, "--write"]
    ported = commands.run(port)
    assert ported.returncode == 0, ported.stderr
    assert BLOCKS["diff"] in ported.stdout
    assert "Places to change by hand: 0." in ported.stdout

    arguments = ["--experiment=blobs", "--mode=train_and_eval", f"--model_dir={model_dir}"]
    trained = commands.run([project, *arguments])
    assert trained.returncode == 0, trained.stderr
    assert (model_dir / "ckpt-400.index").is_file()
    log = (model_dir / "log.txt").read_text()
    [accuracy] = re.findall(r"validation \| step 400 \| accuracy (\S+)", log)
    assert float(accuracy) > 0.95
