import pathlib
import shutil

import pytest

from official_lite.checkpoint import committed_checkpoint_manager
from official_lite.common import errors


def test_another_one_needs_a_fifth_more_than_the_last(tmp_path: pathlib.Path, monkeypatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(0, 0, 1200))
    committed_checkpoint_manager.require_space(str(tmp_path), 1000)
    with pytest.raises(errors.CheckpointError, match="1,001 bytes, but only 1,200 bytes are free"):
        committed_checkpoint_manager.require_space(str(tmp_path), 1001)


def test_unknown_room_is_enough(tmp_path: pathlib.Path) -> None:
    committed_checkpoint_manager.require_space(str(tmp_path / "nowhere"), 10**18)
    committed_checkpoint_manager.require_space("gs://bucket/run", 10**18)
