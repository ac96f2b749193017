import logging
import os
import pathlib
import subprocess
import sys

import pytest
import tensorflow as tf

from official_lite.run import xla_cache
from tests import commands

TRAIN = [
    "train.py",
    "--experiment=vision/digits_mlp",
    "--mode=train",
    "--set=trainer.train_steps=5",
    "--set=runtime.execution=xla",
]


def test_second_start_loads_the_programs_of_the_first_and_ends_with_the_same_weights(
    tmp_path: pathlib.Path,
) -> None:
    def start(name: str) -> dict[pathlib.Path, int]:
        # `commands.run` would fork a process in which TensorFlow has read the setting.
        command = [sys.executable, *TRAIN, f"--model_dir={tmp_path / name}"]
        command.append(f"--set=runtime.xla_cache_dir={tmp_path / 'my programs'}")
        subprocess.run(command, cwd=commands.ROOT, check=True)
        # A program that is compiled again is written to a new file.
        return {path: path.stat().st_ino for path in (tmp_path / "my programs").rglob("*.pb")}

    def weights(name: str) -> bytes:
        return (tmp_path / name / "ckpt-5.data-00000-of-00001").read_bytes()

    compiled = start("first")
    assert compiled
    assert start("second") == compiled
    assert commands.run([*TRAIN, f"--model_dir={tmp_path / 'without'}"]).returncode == 0
    assert weights("first") == weights("second") == weights("without")


def test_directory_that_can_not_be_used_is_a_warning(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delitem(sys.modules, "tensorflow.python.eager.context", raising=False)
    (tmp_path / "file").touch()
    for flags, directory, reason in (
        ("", "file/xla", "Not a directory"),
        ("/etc/xla.flags", "xla", "names a file of flags"),
    ):
        monkeypatch.setenv("TF_XLA_FLAGS", flags)
        with caplog.at_level(logging.WARNING):
            xla_cache.use_directory(str(tmp_path / directory))
        assert reason in caplog.text
        assert os.environ["TF_XLA_FLAGS"] == flags


def test_programs_of_other_xla_flags_are_kept_apart(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for flags in ("", "--xla_cpu_max_isa=AVX2"):
        # What the function sets is undone, too.
        monkeypatch.setenv("TF_XLA_FLAGS", "")
        monkeypatch.delitem(sys.modules, "tensorflow.python.eager.context", raising=False)
        monkeypatch.setenv("XLA_FLAGS", flags)
        xla_cache.use_directory(str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 2


def test_directory_in_the_xla_flags_of_the_user_is_kept(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = f"--tf_xla_persistent_cache_directory={tmp_path / 'mine'}"
    monkeypatch.setenv("TF_XLA_FLAGS", given)
    xla_cache.use_directory(str(tmp_path / "other"))
    assert os.environ["TF_XLA_FLAGS"] == given
    assert not (tmp_path / "other").exists()


def test_directory_that_comes_too_late_is_said_to_be_without_effect(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TF_XLA_FLAGS", "")
    caplog.set_level(logging.WARNING, logger="absl")
    tf.config.list_physical_devices()
    xla_cache.use_directory(str(tmp_path))
    assert "`runtime.xla_cache_dir` has no effect" in caplog.text
    assert f"--tf_xla_persistent_cache_directory='{tmp_path}" in caplog.text
    assert os.environ["TF_XLA_FLAGS"] == ""


def test_program_that_a_loss_of_power_has_damaged_is_removed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def use() -> pathlib.Path:
        monkeypatch.setenv("TF_XLA_FLAGS", "")
        monkeypatch.delitem(sys.modules, "tensorflow.python.eager.context", raising=False)
        xla_cache.use_directory(str(tmp_path))
        return next(tmp_path.iterdir())

    # A field of 300 bytes with the number 3, as a protocol buffer.
    whole = b"\x1a\xac\x02" + bytes(range(100)) * 3
    contents = {"whole": whole * 2, "cut": whole[:-1], "length": whole[:2], "zeros": bytes(300)}
    contents |= {"empty": b"", "tag": whole + b"\x1a"}
    for name, content in contents.items():
        (use() / f"{name}.pb").write_bytes(content)
    assert [path.name for path in use().iterdir()] == ["whole.pb"]
