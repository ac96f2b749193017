"""A text corpus as sentences of tokens."""

import functools
from typing import NamedTuple

import numpy as np

from experiments.language.tokenizer import library
from official_lite.common import errors

__all__ = ["Corpus", "SpecialTokens", "load_corpus", "special_tokens"]


class Corpus(NamedTuple):
    """All sentences of a corpus, concatenated; s is the number of sentences.

    Attributes:
        tokens: The tokens of all sentences, int32.
        begins: The index in `tokens` at which each sentence begins, int64 of shape (s,).
        ends: The index at which each sentence ends.
        last_of_document: For each sentence, the number of the last sentence of its document.
    """

    tokens: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    last_of_document: np.ndarray

    def first_parts(self) -> np.ndarray:
        """Return the sentences that are followed by another sentence of their document."""
        return np.flatnonzero(self.last_of_document > np.arange(len(self.begins)))


class SpecialTokens(NamedTuple):
    """The ids of the tokens that do not represent text."""

    padding: int
    first: int
    separator: int
    hidden: int


def special_tokens(tokenizer_path: str) -> SpecialTokens:
    """Return the ids of BERT's special tokens, which the tokenizer must have."""
    tokenizer = library.load_tokenizer(tokenizer_path)
    names = ("[PAD]", "[CLS]", "[SEP]", "[MASK]")
    return SpecialTokens(*(library.require_token(tokenizer, name) for name in names))


# Cached, because a trainer requests its data more than once.
@functools.lru_cache(maxsize=2)
def load_corpus(paths: tuple[str, ...], tokenizer_path: str) -> Corpus:
    """Read text with one sentence per line and an empty line between documents.

    Args:
        paths: The files. A document does not continue in the next file.
        tokenizer_path: A `tokenizer.json`.

    Raises:
        DataError: If no document has two sentences.
    """
    tokenizer = library.load_tokenizer(tokenizer_path)
    sentences: list[np.ndarray] = []
    last_sentences: list[int] = []
    for path in paths:
        for tokens in library.encode_lines(tokenizer, library.read_lines([path])):
            if len(tokens):
                sentences.append(tokens)
            else:
                last_sentences.append(len(sentences) - 1)
        last_sentences.append(len(sentences) - 1)
    ends = np.cumsum([len(sentence) for sentence in sentences], dtype=np.int64)
    # Each sentence belongs to the first document that does not end before it.
    which = np.searchsorted(last_sentences, np.arange(len(sentences)))
    found = Corpus(
        tokens=np.concatenate([*sentences, np.zeros(0, np.int32)]),
        begins=np.concatenate([[0], ends[:-1]]).astype(np.int64),
        ends=ends,
        last_of_document=np.array(last_sentences, np.int64)[which],
    )
    if not len(found.first_parts()):
        raise errors.DataError(
            f"Found {len(sentences)} sentences in {', '.join(paths)}, but no document with two "
            "sentences. Write one sentence per line, and an empty line only between documents."
        )
    return found
