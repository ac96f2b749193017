"""Examples of two parts of text, some of whose words are masked."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import tensorflow as tf

from experiments.language.bert_pretraining import configs, corpus
from official_lite.core import input_reader
from official_lite.data import position

__all__ = ["build_examples", "hide", "read_records", "read_text"]

Tensors = dict[str, tf.Tensor]

# The fractions of masked words that are replaced by [MASK] and by a random word. The remaining
# masked words stay unchanged.
_SHARE_MASKED, _SHARE_CHANGED = 0.8, 0.1

_LABELS = ("masked_lm_ids", "masked_lm_weights", "next_sentence_labels")


def read_text(
    params: configs.BertPretrainDataConfig,
    tokenizer_path: str,
    vocab_size: int,
    input_context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Build batches of features and labels from text files.

    Each sentence that is followed by another one begins an example once per epoch. All random
    choices depend only on the seed and the number of the batch.

    Args:
        params: The files and the length of an example.
        tokenizer_path: A `tokenizer.json`.
        vocab_size: The vocabulary size of the model.
        input_context: The index of this input pipeline and the number of pipelines.
    """
    # This is never a mapping of several sources, because `match_files` rejects one.
    files = input_reader.match_files(cast("Sequence[str] | str", params.input_path))
    text = corpus.load_corpus(tuple(files), tokenizer_path)
    special = corpus.special_tokens(tokenizer_path)
    rows = input_reader.from_arrays(text.first_parts(), params, input_context)
    # On a GPU, the text would have to be copied back to the CPU for every batch.
    with tf.device("CPU"):
        tensors = corpus.Corpus(*map(tf.convert_to_tensor, text))

    def build(seed: tf.Tensor, rows: tf.Tensor) -> tuple[Tensors, Tensors]:
        seeds = tf.random.split(seed, 2)
        examples = build_examples(rows, seeds[0], tensors, special, params.seq_length)
        hidden = hide(examples, seeds[1], special, vocab_size, params)
        return _features_and_labels(hidden, params)

    return position.map_batches(rows, build, input_context, seed=params.seed).prefetch(2)


def build_examples(
    rows: tf.Tensor,
    seed: tf.Tensor,
    text: corpus.Corpus,
    special: corpus.SpecialTokens,
    seq_length: int,
) -> Tensors:
    """Build pairs of parts: [CLS] first [SEP] second [SEP], followed by padding.

    The first part begins and ends with a random sentence boundary, unless it has to be cut. The
    second part is what follows or, in half of the examples, begins with a random sentence. It
    extends as far as there is room and its document continues.

    Args:
        rows: The numbers of the sentences that begin the examples.
        seed: The seed of all draws, in the form that `tf.random.stateless_uniform` accepts.
        text: The sentences, as tensors.
        special: The numbers of special tokens.
        seq_length: The length of an example.
    """
    count = tf.shape(rows)[0]
    seeds = tf.random.split(seed, 3)
    room = tf.constant(seq_length - 3, tf.int64)
    # The first part ends at least one sentence before the end of its document, and leaves room for
    # at least one token of the second part.
    wanted = tf.random.stateless_uniform([count], seeds[0], 1, room, tf.int64)
    begins = tf.gather(text.begins, rows)
    last_ones = tf.searchsorted(text.ends, begins + wanted, side="right", out_type=tf.int64) - 1
    last_ones = tf.clip_by_value(last_ones, rows, tf.gather(text.last_of_document, rows) - 1)
    lengths = tf.minimum(tf.gather(text.ends, last_ones) - begins, room - 1)
    any_ones = tf.random.stateless_uniform(
        [count], seeds[1], 0, tf.shape(text.begins, tf.int64)[0], tf.int64
    )
    follows = tf.random.stateless_uniform([count], seeds[2]) < 0.5
    second_ones = tf.where(follows, last_ones + 1, any_ones)
    second_begins = tf.gather(text.begins, second_ones)
    document_ends = tf.gather(text.ends, tf.gather(text.last_of_document, second_ones))
    second_lengths = tf.minimum(document_ends - second_begins, room - lengths)

    places = tf.range(seq_length, dtype=tf.int64)[tf.newaxis]
    separators = (lengths + 1)[:, tf.newaxis]
    ends = separators + 1 + second_lengths[:, tf.newaxis]
    in_first = (places >= 1) & (places < separators)
    in_second = (places > separators) & (places < ends)
    sources = tf.where(
        in_first,
        begins[:, tf.newaxis] + places - 1,
        second_begins[:, tf.newaxis] + places - separators - 1,
    )
    is_text = in_first | in_second
    words = tf.gather(text.tokens, tf.where(is_text, sources, 0))
    others = tf.where(places > ends, special.padding, special.separator)
    others = tf.where(places == 0, special.first, others)
    return {
        "input_word_ids": tf.where(is_text, words, others),
        "input_mask": tf.cast(places <= ends, tf.int32),
        "input_type_ids": tf.cast((places > separators) & (places <= ends), tf.int32),
        "is_text": is_text,
        # As in BERT, label 0 means that the second part follows the first.
        "next_sentence_labels": tf.cast(second_ones != last_ones + 1, tf.int32)[:, tf.newaxis],
    }


def hide(
    examples: Tensors,
    seed: tf.Tensor,
    special: corpus.SpecialTokens,
    vocab_size: int,
    params: configs.BertPretrainDataConfig,
) -> Tensors:
    """Mask some words, with the same probability at each position.

    Args:
        examples: The result of `build_examples`.
        seed: The seed of all draws.
        special: The numbers of special tokens.
        vocab_size: The number of words from which a replacement is drawn.
        params: How many words to mask.
    """
    ids, is_text = examples["input_word_ids"], examples["is_text"]
    seeds = tf.random.split(seed, 3)
    ranks = tf.random.stateless_uniform(tf.shape(ids), seeds[0])
    most = params.max_predictions_per_seq
    places = tf.math.top_k(tf.where(is_text, ranks, -1.0), most).indices
    num_words = tf.reduce_sum(tf.cast(is_text, tf.float32), axis=1, keepdims=True)
    num_hidden = tf.clip_by_value(tf.round(params.mask_rate * num_words), 1.0, float(most))
    is_hidden = tf.range(most, dtype=tf.float32)[tf.newaxis] < num_hidden
    # Unused entries refer to position 0, the [CLS] token, and leave it unchanged.
    places = tf.where(is_hidden, places, 0)
    words = tf.gather(ids, places, batch_dims=1)
    draw = tf.random.stateless_uniform(tf.shape(words), seeds[1])
    any_words = tf.random.stateless_uniform(tf.shape(words), seeds[2], 0, vocab_size, tf.int32)
    shown = tf.where(draw < _SHARE_MASKED + _SHARE_CHANGED, any_words, words)
    shown = tf.where(draw < _SHARE_MASKED, special.hidden, shown)
    shown = tf.where(is_hidden, shown, words)
    numbers = tf.broadcast_to(tf.range(tf.shape(ids)[0])[:, tf.newaxis], tf.shape(places))
    return examples | {
        "input_word_ids": tf.tensor_scatter_nd_update(
            ids, tf.stack([numbers, places], axis=-1), shown
        ),
        "masked_lm_positions": places,
        "masked_lm_ids": tf.where(is_hidden, words, 0),
        "masked_lm_weights": tf.cast(is_hidden, tf.float32),
    }


def read_records(
    params: configs.BertPretrainDataConfig,
    input_context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Read batches of features and labels from TFRecords whose words are already masked.

    Args:
        params: The files and their format.
        input_context: The index of this input pipeline and the number of pipelines.
    """
    is_v2 = params.use_v2_feature_names
    names = {
        "input_word_ids": "input_word_ids" if is_v2 else "input_ids",
        "input_type_ids": "input_type_ids" if is_v2 else "segment_ids",
    }
    lengths = {
        names["input_word_ids"]: params.seq_length,
        names["input_type_ids"]: params.seq_length,
        "input_mask": params.seq_length,
        "masked_lm_positions": params.max_predictions_per_seq,
        "masked_lm_ids": params.max_predictions_per_seq,
    }
    if params.use_next_sentence_label:
        lengths["next_sentence_labels"] = 1
    features = {name: tf.io.FixedLenFeature((n,), tf.int64) for name, n in lengths.items()}
    features["masked_lm_weights"] = tf.io.FixedLenFeature(
        (params.max_predictions_per_seq,), tf.float32
    )

    @input_reader.takes_batches
    def parse(raw: Mapping[str, tf.Tensor]) -> Any:
        renamed = dict(raw) | {name: raw[old] for name, old in names.items()}
        return _features_and_labels(renamed, params)

    decoder = input_reader.FeatureDecoder(features)
    reader = input_reader.InputReader(params, decoder_fn=decoder.decode, parser_fn=parse)
    return reader.read(input_context)


def _features_and_labels(
    examples: Mapping[str, tf.Tensor], params: configs.BertPretrainDataConfig
) -> tuple[Tensors, Tensors]:
    def as_int32(name: str) -> tf.Tensor:
        tensor = examples[name]
        return tf.cast(tensor, tf.int32) if tensor.dtype == tf.int64 else tensor

    features = ("input_word_ids", "input_mask", "input_type_ids", "masked_lm_positions")
    labels = _LABELS if params.use_next_sentence_label else _LABELS[:-1]
    return {name: as_int32(name) for name in features}, {name: as_int32(name) for name in labels}
