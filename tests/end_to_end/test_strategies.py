"""Training gives the same losses under each synchronous strategy."""

import json
import pathlib
from typing import Any

import portpicker
import pytest

from tests import commands, rounding

COMMAND = (
    "train.py",
    "--experiment=vision/digits_mlp",
    "--mode=train_and_eval",
    "--set=trainer.train_steps=8",
    "--set=trainer.steps_per_loop=4",
    "--set=trainer.validation_interval=4",
)
# The number of roundings in eight updates of 64 examples each.
ROUNDINGS = 8 * 64
# Rounding may change the prediction of an example whose two best classes are equally probable, and
# each accuracy is a mean over at least 4 * 64 examples.
ONE_EXAMPLE = 1 / (4 * 64)


def _train(model_dir: pathlib.Path, strategy: str, workers: int = 1, **runtime: str) -> list[Any]:
    """Train with a strategy, and return the records in `metrics.json`."""
    args = [f"--set=runtime.{name}={value}" for name, value in runtime.items()]
    args += [f"--set=runtime.distribution_strategy={strategy}", f"--model_dir={model_dir}"]
    hosts = [f"localhost:{portpicker.pick_unused_port()}" for _ in range(workers)]
    started = []
    for index in range(workers):
        cluster = {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}}
        env = {"TF_CONFIG": json.dumps(cluster)} if workers > 1 else {}
        started.append(commands.Command([*COMMAND, *args], env=env))
    for command in started:
        assert command.wait() == 0, command.stderr[-3000:]
    return [json.loads(line) for line in (model_dir / "metrics.json").read_text().splitlines()]


@pytest.mark.slow
def test_mirrored_and_multi_worker_training_have_the_same_losses_as_one_device(
    tmp_path: pathlib.Path,
) -> None:
    one = _train(tmp_path / "off", "off")
    assert [r["step"] for r in one if r["split"] == "validation"] == [4, 8]
    mirrored = _train(tmp_path / "mirrored", "mirrored", devices="[CPU:0,CPU:1]")
    workers = _train(tmp_path / "workers", "multi_worker_mirrored", workers=2)
    for other in (mirrored, workers):
        assert [(r["split"], r["step"]) for r in other] == [(r["split"], r["step"]) for r in one]
        for a, b in zip(one, other, strict=True):
            assert b["accuracy"] == pytest.approx(a["accuracy"], abs=ONE_EXAMPLE), a["step"]
            for name in a.keys() & {"training_loss", "validation_loss"}:
                rounding.assert_close(b[name], a[name], roundings=ROUNDINGS)
