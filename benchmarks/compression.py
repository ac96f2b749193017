"""A benchmark of quantization, pruning, clustering and distillation on Fashion-MNIST.

python -m benchmarks.compression --only pruning --data ../shared/data/fashion-mnist

Every model is trained by its config, exported to LiteRT, and evaluated on the 10,000 test images by
the LiteRT interpreter. The trainings are kept in `--output`; a second call resumes and reuses them.
The dense model and the compressed ones train for equally many steps.
"""

import argparse
import dataclasses
import functools
import gzip
import pathlib
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from experiments.vision.digits import configs, model
from experiments.vision.digits import data as digits_data
from experiments.vision.digits import task as digits_task
from official_lite.core import config_definitions as cfg
from official_lite.core import exp_factory, task_factory, train_lib
from official_lite.modeling import model_export, optimization
from official_lite.run import runtime
from official_lite.tools.exporting import run_model

_EXPERIMENT = "benchmarks/fashion_mnist"
_IMAGE_SHAPE = (28, 28, 1)
_NUM_CLASSES = 10
_PARTS = ("quantization", "pruning", "clustering", "distillation")

_TEACHER = configs.DigitsModelConfig(filters=(16, 32, 64), units=(64,), dropout_rate=0.3)
# A fifth of the weights.
_STUDENT = configs.DigitsModelConfig(filters=(8, 16, 24), units=(32,))


@dataclasses.dataclass
class FashionConfig(configs.DigitsConfig):
    """The config of the classification of Fashion-MNIST.

    Attributes:
        data_dir: The directory with the four files of Fashion-MNIST.
    """

    data_dir: str = ""


@task_factory.register_task_cls(FashionConfig)
class FashionTask(digits_task.DigitsTask):
    """A task that assigns images of clothes to one of ten classes."""

    def build_model(self) -> keras.Model:
        return model.build_model(self.task_config.model, _IMAGE_SHAPE, _NUM_CLASSES)

    def build_inputs(
        self, params: Any, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        examples = load_split(self.task_config.data_dir, params.split)
        return digits_data.batches_of(examples, params, input_context)


@exp_factory.register_config_factory(_EXPERIMENT)
def fashion_mnist() -> cfg.ExperimentConfig:
    """Return a small convolutional network for Fashion-MNIST."""
    return cfg.ExperimentConfig(
        task=FashionConfig(
            model=_TEACHER,
            train_data=configs.DigitsDataConfig(
                split="train", is_training=True, global_batch_size=128, seed=1
            ),
            validation_data=configs.DigitsDataConfig(
                split="validation", is_training=False, global_batch_size=500, drop_remainder=False
            ),
        ),
        trainer=cfg.TrainerConfig(
            steps_per_loop=100,
            checkpoint_interval=500,
            validation_interval=0,
            writers=["console", "jsonl"],
            optimizer_config=optimization.OptimizationConfig(
                {
                    "optimizer": {"type": "adamw", "adamw": {"weight_decay_rate": 0.01}},
                    "learning_rate": {
                        "type": "cosine",
                        "cosine": {"initial_learning_rate": 2e-3, "decay_steps": 1},
                    },
                }
            ),
        ),
        runtime=cfg.RuntimeConfig(distribution_strategy="one_device", execution="graph"),
    )


@functools.cache
def load_split(data_dir: str, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return images, float32 in [0, 1] of shape (n, 28, 28, 1), and labels, int32 of shape (n,)."""
    prefix = pathlib.Path(data_dir, {"train": "train", "validation": "t10k"}[split])
    images = _read(f"{prefix}-images-idx3-ubyte.gz", offset=16).reshape(-1, *_IMAGE_SHAPE)
    labels = _read(f"{prefix}-labels-idx1-ubyte.gz", offset=8)
    return images.astype(np.float32) / 255, labels.astype(np.int32)


def _read(path: str, offset: int) -> np.ndarray:
    with gzip.open(path) as file:
        return np.frombuffer(file.read(), np.uint8, offset=offset)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """A model, measured on its exported file.

    Attributes:
        name: What was done to the model.
        accuracy: The accuracy on the test images, in percent.
        weights: The number of weights.
        zeros: The share of zeros among the weights of the kernels that have any.
        size: The size of the file in bytes.
        gzipped: Its size after gzip.
        latency: The median time of a call with one image, in milliseconds.
    """

    name: str
    accuracy: float
    weights: int
    zeros: float
    size: int
    gzipped: int
    latency: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Trains and measures models.

    Attributes:
        data_dir: The directory with Fashion-MNIST.
        output: The directory of the runs.
        steps: The number of steps of a training.
        seed: The seed of the trainings.
    """

    data_dir: str
    output: pathlib.Path
    steps: int
    seed: int

    def measure(
        self,
        name: str,
        compression: dict[str, Any] | None = None,
        size: configs.DigitsModelConfig = _TEACHER,
        *,
        fine_tunes: str = "",
    ) -> Result:
        """Train a model, unless it is trained, and measure its exported file.

        Args:
            name: What is done to the model.
            compression: The config block `task.compression`.
            size: The size of the model.
            fine_tunes: The name of a trained model to start from, with a quarter of the steps and a
                tenth of the learning rate.
        """
        steps = self.steps // 4 if fine_tunes else self.steps
        params = exp_factory.get_exp_config(_EXPERIMENT)
        params.override(
            {
                "task": {
                    "data_dir": self.data_dir,
                    "model": size.as_dict(),
                    "compression": compression,
                    "init_checkpoint": str(self.run_dir(fine_tunes)) if fine_tunes else "",
                },
                "trainer": {
                    "train_steps": steps,
                    "optimizer_config": {
                        "learning_rate": {
                            "cosine": {
                                "decay_steps": steps,
                                "initial_learning_rate": 2e-4 if fine_tunes else 2e-3,
                            }
                        }
                    },
                },
                "runtime": {"seed": self.seed},
            }
        )
        run = self.run_dir(name)
        strategy = runtime.build_strategy(params.runtime)
        with strategy.scope():
            task = task_factory.get_task(params.task)
        train_lib.run_experiment(strategy, task, "train", params, str(run))
        with run_model.built(params) as (ctx, _):
            run_model.load_weights(ctx, run_model.find_checkpoint(str(run)))
            trained = ctx.require("model")
            path = run / "export" / "model.tflite"
            model_export.write_model(trained, str(path), "litert")
            return Result(
                name=name,
                accuracy=100 * accuracy_of(path, load_split(self.data_dir, "validation")),
                weights=trained.count_params(),
                zeros=_zeros(trained),
                size=path.stat().st_size,
                gzipped=len(gzip.compress(path.read_bytes())),
                latency=latency_of(path),
            )

    def run_dir(self, name: str) -> pathlib.Path:
        """Return the model directory of a run."""
        return self.output / f"{name.replace(' ', '_')}_{self.steps}_{self.seed}"

    def quantization(self) -> Iterator[Result]:
        """Yield the dense model, and one of 8-bit integers that was fine-tuned from it."""
        yield self.measure("dense")
        yield self.measure("int8", {"quantization": {}}, fine_tunes="dense")

    def pruning(self) -> Iterator[Result]:
        """Yield the dense model, one with 80 % zeros, one with 2:4, and one of 16 values."""
        schedule = {"begin_step": self.steps // 5, "end_step": self.steps * 7 // 10}
        yield self.measure("dense")
        yield self.measure("80 sparse", {"pruning": {**schedule, "final_sparsity": 0.8}})
        yield self.measure("2 of 4", {"pruning": {**schedule, "sparsity_m_by_n": [2, 4]}})

    def clustering(self) -> Iterator[Result]:
        """Yield the dense model and one whose kernels have 16 values each."""
        yield self.measure("dense")
        yield self.measure("16 values", {"clustering": {"begin_step": self.steps * 7 // 10}})

    def distillation(self) -> Iterator[Result]:
        """Yield the teacher, the student by itself, and the student with the teacher."""
        yield self.measure("dense")
        yield self.measure("student", size=_STUDENT)
        teacher = {"teacher": str(self.run_dir("dense")), "experiment": _EXPERIMENT}
        settings = {"alpha": 0.9, "temperature": 4.0}
        yield self.measure(
            "distilled student", {"distillation": {**teacher, **settings}}, size=_STUDENT
        )


def accuracy_of(path: pathlib.Path, examples: tuple[np.ndarray, np.ndarray]) -> float:
    """Return the accuracy of a LiteRT model, run by the LiteRT interpreter."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path), num_threads=2)
    runner = interpreter.get_signature_runner()
    (signature,) = interpreter.get_signature_list().values()
    (name,) = signature["inputs"]
    images, labels = examples
    correct = 0
    for first in range(0, len(labels), 500):
        (logits,) = runner(**{name: images[first : first + 500]}).values()
        correct += int((logits.argmax(-1) == labels[first : first + 500]).sum())
    return correct / len(labels)


def latency_of(path: pathlib.Path) -> float:
    """Return the median time of 500 calls with one image on one thread, in milliseconds."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path), num_threads=1)
    interpreter.allocate_tensors()
    (details,) = interpreter.get_input_details()
    interpreter.set_tensor(details["index"], np.zeros((1, *_IMAGE_SHAPE), np.float32))
    times = []
    for _ in range(550):
        start = time.perf_counter()
        interpreter.invoke()
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times[50:])


def _zeros(trained: keras.Model) -> float:
    kernels = [weight.numpy() for weight in trained.weights if weight.name == "kernel"]
    pruned = [kernel for kernel in kernels if np.mean(kernel == 0) > 0.01]
    return sum(int((k == 0).sum()) for k in pruned) / max(1, sum(k.size for k in pruned))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=_PARTS)
    parser.add_argument("--data", default="../shared/data/fashion-mnist")
    parser.add_argument("--output", default="/tmp/compression", type=pathlib.Path)
    parser.add_argument("--steps", default=2300, type=int)
    parser.add_argument("--seeds", default=1, type=int)
    args = parser.parse_args(argv)
    parts = [args.only] if args.only else _PARTS
    print("| model | seed | accuracy | weights | zeros in kernels | bytes | gzipped | ms |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for seed in range(args.seeds):
        benchmark = Benchmark(data_dir=args.data, output=args.output, steps=args.steps, seed=seed)
        for part in parts:
            for each in getattr(benchmark, part)():
                print(
                    f"| {each.name} | {seed} | {each.accuracy:.2f} % | {each.weights:,} | "
                    f"{each.zeros:.1%} | {each.size:,} | {each.gzipped:,} | {each.latency:.3f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
