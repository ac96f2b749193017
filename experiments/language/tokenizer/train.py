"""Train a tokenizer on your own text.

python -m experiments.language.tokenizer.train --input_path='/data/*.txt' --output=/tmp/bpe.json
"""

import argparse
from collections.abc import Sequence
from typing import Any

from experiments.language.tokenizer import library
from official_lite.data import file_patterns

__all__ = ["END_OF_TEXT", "KINDS", "SPECIAL_TOKENS", "main", "train_tokenizer"]

END_OF_TEXT = "<|endoftext|>"
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
KINDS = ("bpe", "wordpiece")


def train_tokenizer(paths: Sequence[str], kind: str, vocab_size: int) -> Any:
    """Train a `tokenizers.Tokenizer`.

    Args:
        paths: Text files.
        kind: `bpe`, on bytes like GPT-2's, or `wordpiece`, in lower case like BERT's.
        vocab_size: The maximum number of tokens.
    """
    tokenizers = library.import_library()
    tokenizer, trainer = {"bpe": _bpe, "wordpiece": _wordpiece}[kind](tokenizers, vocab_size)
    tokenizer.train(list(paths), trainer)
    return tokenizer


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command.

    Args:
        arguments: Arguments that replace those of the command line.
    """
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--input_path", required=True, help="Text files, as in a config.")
    parser.add_argument("--output", required=True, help="The file to write.")
    parser.add_argument(
        "--kind", choices=KINDS, default="bpe", help="bpe for GPT-2, wordpiece for BERT."
    )
    parser.add_argument("--vocab_size", type=int, default=8192)
    args = parser.parse_args(arguments)
    paths = file_patterns.match_files(args.input_path)
    tokenizer = train_tokenizer(paths, args.kind, args.vocab_size)
    tokenizer.save(args.output)
    print(f"{args.output}: {tokenizer.get_vocab_size()} tokens of {len(paths)} files")


def _bpe(tokenizers: Any, vocab_size: int) -> tuple[Any, Any]:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    bytes_of_text = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = bytes_of_text
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=bytes_of_text.alphabet(),
        show_progress=False,
    )
    return tokenizer, trainer


def _wordpiece(tokenizers: Any, vocab_size: int) -> tuple[Any, Any]:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL_TOKENS), show_progress=False
    )
    return tokenizer, trainer


if __name__ == "__main__":
    main()
