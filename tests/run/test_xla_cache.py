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


def test_second_run_loads_cached_xla_programs_and_ends_with_the_weights_of_the_first(
    tmp_path: pathlib.Path,
) -> None:
    def start(name: str) -> dict[pathlib.Path, int]:
        # `commands.run` would fork a process in which TensorFlow has already read the setting.
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


def test_unusable_xla_cache_directory_warns_and_leaves_tf_xla_flags_unchanged(
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


def test_different_xla_flags_use_different_xla_cache_directories(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for flags in ("", "--xla_cpu_max_isa=AVX2"):
        # Set the variable with `monkeypatch`, which then also undoes the change by `use_directory`.
        monkeypatch.setenv("TF_XLA_FLAGS", "")
        monkeypatch.delitem(sys.modules, "tensorflow.python.eager.context", raising=False)
        monkeypatch.setenv("XLA_FLAGS", flags)
        xla_cache.use_directory(str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 2


def test_xla_cache_dir_does_not_override_a_directory_in_tf_xla_flags(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = f"--tf_xla_persistent_cache_directory={tmp_path / 'mine'}"
    monkeypatch.setenv("TF_XLA_FLAGS", given)
    xla_cache.use_directory(str(tmp_path / "other"))
    assert os.environ["TF_XLA_FLAGS"] == given
    assert not (tmp_path / "other").exists()


def test_xla_cache_directory_set_after_tensorflow_started_warns_that_it_has_no_effect(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TF_XLA_FLAGS", "")
    caplog.set_level(logging.WARNING, logger="absl")
    tf.config.list_physical_devices()
    xla_cache.use_directory(str(tmp_path))
    assert "`runtime.xla_cache_dir` has no effect" in caplog.text
    assert f"--tf_xla_persistent_cache_directory='{tmp_path}" in caplog.text
    assert os.environ["TF_XLA_FLAGS"] == ""


def test_damaged_programs_in_the_xla_cache_are_removed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def use() -> pathlib.Path:
        monkeypatch.setenv("TF_XLA_FLAGS", "")
        monkeypatch.delitem(sys.modules, "tensorflow.python.eager.context", raising=False)
        xla_cache.use_directory(str(tmp_path))
        return next(tmp_path.iterdir())

    # A protocol buffer whose field 3 has 300 bytes.
    whole = b"\x1a\xac\x02" + bytes(range(100)) * 3
    contents = {"whole": whole * 2, "cut": whole[:-1], "length": whole[:2], "zeros": bytes(300)}
    contents |= {"empty": b"", "tag": whole + b"\x1a"}
    for name, content in contents.items():
        (use() / f"{name}.pb").write_bytes(content)
    assert [path.name for path in use().iterdir()] == ["whole.pb"]
