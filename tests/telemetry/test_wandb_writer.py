import sys

import numpy as np
import pytest
import wandb

from official_lite import telemetry
from official_lite.common import errors


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")


@pytest.fixture
def model_dir(tmp_path):
    return tmp_path / "my_run"


def record(step, split="train", **fields):
    return telemetry.Record(step=step, split=split, **{"values": {"loss": 0.5}, **fields})


def transaction_logs(model_dir):
    """The files that `wandb sync` uploads."""
    # A process of W&B writes them, and may be some milliseconds behind until it has ended.
    wandb.teardown()
    return sorted(model_dir.glob("wandb/offline-run-*/*.wandb"))


@pytest.mark.slow
def test_without_a_key_it_writes_offline(model_dir):
    config = {"task.units": 77}
    with telemetry.WandbWriter(model_dir, project="p", config=config) as writer:
        writer.write(record(3, values={"clean": {"loss": 0.625}}))
    [path] = transaction_logs(model_dir)
    content = path.read_bytes()
    for part in (b"train/clean/loss", b"0.625", b"global_step", b"task.units", b"77", b"my_run"):
        assert part in content


def test_restart_goes_on_in_the_same_run(model_dir):
    for step in (1, 2):
        with telemetry.WandbWriter(model_dir, config={"steps": step}) as writer:
            writer.write(record(step))
    run_id = (model_dir / "wandb_run_id").read_text()
    paths = transaction_logs(model_dir)
    assert {path.name for path in paths} == {f"run-{run_id}.wandb"}


def test_closed_writer_can_be_closed_again_and_goes_on(model_dir):
    writer = telemetry.WandbWriter(model_dir, mode="disabled")
    writer.close()
    writer.close()
    writer.write(record(1))
    writer.close()


def test_images_and_histograms_are_logged(model_dir):
    edges = np.linspace(-1, 1, 506)
    histogram = telemetry.Histogram(edges=edges, counts=np.ones(505))
    image = np.zeros([4, 4, 3], np.uint8)
    with telemetry.WandbWriter(model_dir, mode="offline") as writer:
        writer.write(record(3, images={"i": image}, histograms={"h": histogram}))
    [path] = transaction_logs(model_dir)
    assert b"train/h" in path.read_bytes()
    assert list(path.parent.glob("files/media/images/train/i_*.png"))


def test_mode_of_the_environment_is_taken(model_dir, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    with telemetry.WandbWriter(model_dir) as writer:
        writer.write(record(1))
    assert transaction_logs(model_dir) == []


def test_missing_package_is_named_with_its_extra(model_dir, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(errors.ConfigValueError, match=r"pip install official-lite\[wandb\]"):
        telemetry.WandbWriter(model_dir)
