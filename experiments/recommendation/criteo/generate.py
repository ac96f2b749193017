"""Write generated clicks to files of Criteo's format, and print the best possible AUC.

python -m experiments.recommendation.criteo.generate --output=/tmp/clicks --examples=100000
"""

import argparse
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

from experiments.recommendation.criteo import configs, generator

__all__ = ["main", "write"]


def write(
    examples: generator.Examples, truth: generator.Truth, file_format: str, paths: Sequence[str]
) -> None:
    """Write examples to files, an equal part to each.

    Args:
        examples: The examples.
        truth: The model that the examples were drawn from.
        file_format: `tsv` or `tfrecord`.
        paths: The files.
    """
    write_rows = {"tsv": _write_lines, "tfrecord": _write_records}[file_format]
    for path, indices in zip(
        paths, np.array_split(np.arange(len(examples.labels)), len(paths)), strict=True
    ):
        write_rows(path, _rows(examples, truth, indices))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command.

    Args:
        arguments: Arguments that replace those of the command line.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=pathlib.Path, required=True, help="The directory.")
    parser.add_argument("--format", choices=configs.FORMATS, default="tsv")
    parser.add_argument("--split", choices=configs.SPLITS, default="train")
    parser.add_argument("--examples", type=int, default=100_000)
    parser.add_argument("--files", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="The seed of the truth.")
    args = parser.parse_args(arguments)
    examples = generator.generate(args.seed, args.split, args.examples)
    args.output.mkdir(parents=True, exist_ok=True)
    paths = [
        str(args.output / f"{args.split}-{number:05}-of-{args.files:05}.{args.format}")
        for number in range(args.files)
    ]
    write(examples, generator.Truth(args.seed), args.format, paths)
    print(f"{args.examples} examples; the best possible AUC is {examples.best_possible_auc():.4f}")


# An example: its label, its integers (NaN for a missing integer), and its categories.
_Row = tuple[int, list[float], list[str]]


def _rows(
    examples: generator.Examples, truth: generator.Truth, indices: np.ndarray
) -> Iterator[_Row]:
    for index in indices:
        yield (
            int(examples.labels[index]),
            examples.integers[index].tolist(),
            truth.tokens[examples.values[index]].tolist(),
        )


def _write_lines(path: str, rows: Iterator[_Row]) -> None:
    with open(path, "w") as file:
        for label, integers, tokens in rows:
            # NaN is not equal to itself, so this detects missing integers.
            texts = [str(int(number)) if number == number else "" for number in integers]
            file.write("\t".join([str(label), *texts, *tokens]) + "\n")


def _write_records(path: str, rows: Iterator[_Row]) -> None:
    # Imported here because only this format requires TensorFlow.
    import tensorflow as tf

    with tf.io.TFRecordWriter(path) as writer:
        for label, integers, tokens in rows:
            example = tf.train.Example()
            feature = example.features.feature
            feature["label"].int64_list.value.append(label)
            feature["integers"].float_list.value.extend(integers)
            feature["categories"].bytes_list.value.extend(token.encode() for token in tokens)
            writer.write(example.SerializeToString())


if __name__ == "__main__":
    main()
