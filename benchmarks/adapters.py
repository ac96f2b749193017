"""A benchmark of adapters: a GPT on Shakespeare's characters, adapted to the novels of Jane Austen.

python -m benchmarks.adapters --base_text=tinyshakespeare.txt --novels=janeaustenr/data/Rdata.rdb

The novels are those of Debian's package `r-cran-janeaustenr`. The adapters and a full fine-tuning
make the same steps on the same data.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from benchmarks import r_data, report, turns

_GPT = (
    "task.model.hidden_size=128",
    "trainer.checkpoint_interval=1000",
    "trainer.best_checkpoint_export_subdir=",
)
_ADAPTERS = (
    "task.adapters.rank=1",
    "task.adapters.alpha=2",
    "task.adapters.trainable=['gamma$']",
)


def write_novel(novels: pathlib.Path, base_text: pathlib.Path, path: pathlib.Path) -> None:
    """Write a novel in the alphabet of the base, which the first line shows in full."""
    alphabet = sorted(set(base_text.read_text()))
    text = next(one for one in r_data.read_texts(str(novels)) if "PRIDE AND PREJ" in one[:100])
    text = text.replace('"', "'")
    kept = "".join(character for character in text if character in alphabet)
    path.write_text("".join(alphabet) + "\n" + kept)


def train(model_dir: pathlib.Path, mode: str, overrides: Sequence[str]) -> float:
    """Run `train.py`, or resume it, and return the validation loss at the end in nats."""
    command = [
        sys.executable,
        "train.py",
        "--experiment=language/char_gpt",
        f"--mode={mode}",
        f"--model_dir={model_dir}",
        *(f"--set={override}" for override in (*_GPT, *overrides)),
    ]
    finished = subprocess.run(command, cwd=turns.REPOSITORY, capture_output=True, text=True)
    if finished.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{finished.stderr[-2000:]}")
    if mode == "eval":
        return float(json.loads(finished.stdout.splitlines()[-1])["validation_loss"])
    lines = (model_dir / "metrics.json").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    last = [record for record in records if record["split"] == "validation"][-1]
    return float(last["validation_loss"])


def checkpoint_bytes(model_dir: pathlib.Path) -> int:
    """Return the size of the last checkpoint of a run, with its commit file."""
    steps = [int(path.stem.partition("-")[2]) for path in model_dir.glob("ckpt-*.index")]
    return sum(path.stat().st_size for path in model_dir.glob(f"ckpt-{max(steps)}.*"))


def merged_difference(adapted: pathlib.Path) -> float:
    """Return the largest difference of a logit before and after the merge."""
    import registry_imports  # noqa: F401  (imported for its registrations)
    from official_lite.adapters import adapter_files
    from official_lite.core import exp_factory, task_factory
    from official_lite.modeling import hyperparams

    params: Any = exp_factory.get_exp_config("language/char_gpt")
    hyperparams.override_params_dict(params, str(adapted / "params.yaml"), is_strict=True)
    task = task_factory.get_task(params.task)
    model = task.build_model()
    task.initialize(model)
    adapter = adapter_files.load(model, str(adapted))
    batch = next(iter(task.build_inputs(params.task.validation_data)))[0]
    before = keras.ops.convert_to_numpy(model(batch, training=False))
    adapter.merge()
    after = keras.ops.convert_to_numpy(model(batch, training=False))
    return float(np.abs(before - after).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base_text", type=pathlib.Path, required=True)
    parser.add_argument("--novels", type=pathlib.Path, required=True)
    parser.add_argument("--directory", type=pathlib.Path, help="Of the runs; kept if given.")
    parser.add_argument("--base_steps", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--full_rate", type=float, default=1e-3)
    parser.add_argument("--adapter_rate", type=float, default=1e-2)
    report.add_arguments(parser)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = args.directory or pathlib.Path(temporary)
        _run(args, root.resolve())


def _run(args: argparse.Namespace, root: pathlib.Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    novel = root / "novel.txt"
    write_novel(args.novels, args.base_text, novel)
    base = root / "base"
    on_base = [f"task.input_path={args.base_text.resolve()}"]
    losses: dict[str, float] = {
        "base, on its text": train(
            base, "train_and_eval", [*on_base, *_schedule(args.base_steps, 1e-3)]
        )
    }
    on_novel = [f"task.input_path={novel}", f"task.init_checkpoint={base}"]
    runs: Mapping[str, tuple[str, Sequence[str]]] = {
        "base": ("eval", []),
        "full": ("train_and_eval", _schedule(args.steps, args.full_rate)),
        "adapters": (
            "train_and_eval",
            [*_schedule(args.steps, args.adapter_rate), *_ADAPTERS],
        ),
    }
    for name, (mode, overrides) in runs.items():
        losses[name] = train(root / f"novel_{name}", mode, [*on_novel, *overrides])
        print(f"{name:10} {losses[name]:.4f}", flush=True)
    gain = (losses["base"] - losses["adapters"]) / (losses["base"] - losses["full"])
    full, small = (checkpoint_bytes(root / f"novel_{name}") for name in ("full", "adapters"))
    difference = merged_difference(root / "novel_adapters")
    table = report.Table(
        title=f"Fine-tuning a GPT of {args.base_steps} steps in {args.steps} steps",
        columns=("", "validation loss, nats", "gain ÷ full", "checkpoint, bytes", "÷ full"),
        rows=[
            ("base", losses["base"], None, None, None),
            ("full", losses["full"], 1.0, full, 1.0),
            ("adapters", losses["adapters"], gain, small, small / full),
        ],
        note=f"Merged, the logits differ by at most {difference:.1e}.",
    )
    report.Report(
        benchmark="adapters",
        command=report.command_line("adapters"),
        tables=[table],
        measurements={"losses": losses, "merged_difference": difference},
    ).publish(args.results_dir)


def _schedule(steps: int, rate: float) -> list[str]:
    """Return a cosine with a warm-up, over all steps."""
    warmup = steps // 20
    optimizer = "trainer.optimizer_config"
    cosine = f"{optimizer}.learning_rate.cosine"
    return [
        f"trainer.train_steps={steps}",
        f"trainer.validation_interval={steps}",
        f"{cosine}.initial_learning_rate={rate}",
        f"{cosine}.decay_steps={steps - warmup}",
        f"{cosine}.offset={warmup}",
        f"{optimizer}.warmup.linear.warmup_steps={warmup}",
    ]


if __name__ == "__main__":
    main()
