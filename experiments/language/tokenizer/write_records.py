r"""Write text as TFRecords of tokens, so that runs need not tokenize the text again.

python -m experiments.language.tokenizer.write_records --input_path='/data/*.txt' \
  --tokenizer=/tmp/bpe.json --output=/tmp/train.tfrecord
"""

import argparse
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from experiments.language.gpt2 import data
from official_lite.data import file_patterns

__all__ = ["main", "write_records"]


def write_records(tokens: np.ndarray, seq_length: int, path: str) -> int:
    """Write rows of `seq_length` tokens and the token that follows, as the feature `ids`.

    Args:
        tokens: The text. Tokens at its end that do not fill a row are left out.
        seq_length: The sequence length of the model to be trained.
        path: The file.

    Returns:
        The number of records written.
    """
    num_records = (len(tokens) - 1) // seq_length
    with tf.io.TFRecordWriter(path) as writer:
        for first in range(0, num_records * seq_length, seq_length):
            example = tf.train.Example()
            ids = example.features.feature[data.FEATURE].int64_list.value
            ids.extend(tokens[first : first + seq_length + 1].tolist())
            writer.write(example.SerializeToString())
    return num_records


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command.

    Args:
        arguments: Arguments that replace those of the command line.
    """
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--input_path", required=True, help="Text files, as in a config.")
    parser.add_argument("--tokenizer", required=True, help="A tokenizer.json.")
    parser.add_argument("--output", required=True, help="The file to write.")
    parser.add_argument("--seq_length", type=int, default=1024)
    args = parser.parse_args(arguments)
    paths = tuple(file_patterns.match_files(args.input_path))
    tokens = data.load_tokens(paths, args.tokenizer)
    count = write_records(tokens, args.seq_length, args.output)
    print(f"{args.output}: {count} records of {len(tokens)} tokens")


if __name__ == "__main__":
    main()
