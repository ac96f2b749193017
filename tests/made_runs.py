"""Model directories like those of finished runs, written without training."""

import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

CONFIG = {
    "task": {"train_data": {"global_batch_size": 64}, "model": {"units": [64, 64]}},
    "trainer": {
        "train_steps": 1000,
        "best_checkpoint_eval_metric": "accuracy",
        "optimizer_config": {"learning_rate": {"constant": {"learning_rate": 0.001}}},
    },
    "runtime": {"distribution_strategy": "mirrored"},
}


def make_run(
    directory: pathlib.Path,
    *,
    config: Mapping[str, Any] = CONFIG,
    record: Mapping[str, Any] | None = None,
    num_reports: int = 20,
    offset: float = 0.0,
) -> pathlib.Path:
    """Write the directory of a finished run of 1000 steps and return the directory."""
    directory.mkdir(parents=True)
    (directory / "params.yaml").write_text(yaml.safe_dump(dict(config)))
    (directory / "run.json").write_text(json.dumps({**_record(), **(record or {})}))
    write_metrics(directory, _metrics(num_reports, offset))
    best = directory / "best_ckpt"
    best.mkdir()
    info = {"accuracy": 0.9 + offset, "best_ckpt_global_step": 800.0}
    (best / "info.json").write_text(json.dumps(info))
    for step in (500, 1000):
        (directory / f"ckpt-{step}.index").write_bytes(b"0" * 2000)
        (directory / f"ckpt-{step}.data-00000-of-00001").write_bytes(b"0" * 50_000)
    return directory


def write_metrics(directory: pathlib.Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write `metrics.json`."""
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (directory / "metrics.json").write_text(text)


def _metrics(num_reports: int, offset: float) -> Iterable[dict[str, Any]]:
    for number in range(1, num_reports + 1):
        step = 1000 * number // num_reports
        loss = 2.0 / number + offset + 0.05 * (number % 3)
        train = {"training_loss": loss, "accuracy": 0.5 + 0.02 * number + offset}
        speed = {"learning_rate": 1e-3, "steps_per_second": 100.0 + number % 4}
        when = {"wall_time": 1.7e9 + 0.06 * step}
        yield {"step": step, "split": "train", **when, **train, **speed}
        if number % 5 == 0:
            validation = {"validation_loss": loss + 0.1, "accuracy": 0.48 + 0.02 * number + offset}
            best = {"best_accuracy": 0.9}
            yield {"step": step, "split": "validation", **when, **validation, **best}


def _record() -> dict[str, Any]:
    return {
        "status": "done",
        "mode": "train_and_eval",
        "argv": ["train.py", "--experiment=vision/digits_cnn", "--mode=train_and_eval"],
        "seed": 0,
        "train_steps": 1000,
        "start_time": "2026-01-02T03:04:05+0000",
        "end_time": "2026-01-02T03:05:05+0000",
        "seconds": 60.0,
        "host": "localhost",
        "platform": "Linux",
        "versions": {"python": "3.11.7", "tensorflow": "2.21.0"},
        "global_step": 1000,
        "num_parameters": 151308,
        "exit_reason": "completed",
    }
