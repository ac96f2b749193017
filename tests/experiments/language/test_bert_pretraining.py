import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from experiments.language.bert_pretraining import configs, corpus, data, model, task
from experiments.language.tokenizer import train
from official_lite import pipeline
from official_lite.common import errors
from official_lite.core import trainer_factory
from official_lite.data import position
from tests import rounding
from tests.experiments import evaluations

pytest.importorskip("tokenizers")

SPECIAL = corpus.SpecialTokens(padding=0, first=2, separator=3, hidden=4)
SEQ_LENGTH = 16


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Write a file with two documents, and train a tokenizer on it with `tokenizer.train`."""
    root = tmp_path_factory.mktemp("text")
    words = ("one", "two", "three", "four", "five", "six", "seven")
    first = [f"{a} and {b} are here." for a in words for b in words]
    second = [f"where is {a}? not with {b}." for a in words for b in words]
    (root / "text.txt").write_text("\n".join([*first, "", *second]))
    command = [f"--input_path={root}/text.txt", f"--output={root}/wordpiece.json"]
    train.main([*command, "--kind=wordpiece", "--vocab_size=80"])
    return root


def _params(root: pathlib.Path):
    params = configs.bert_pretraining()
    params.task.tokenizer_path = str(root / "wordpiece.json")
    params.task.model.encoder.bert.override(
        {
            "vocab_size": 90,
            "hidden_size": 16,
            "num_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "max_position_embeddings": SEQ_LENGTH,
        }
    )
    for part in (params.task.train_data, params.task.validation_data):
        part.override(
            {
                "input_path": str(root / "text.txt"),
                "seq_length": SEQ_LENGTH,
                "max_predictions_per_seq": 4,
                "global_batch_size": 8,
            }
        )
    params.runtime.override({"execution": "graph", "distribution_strategy": "one_device"})
    return params


def _corpus() -> corpus.Corpus:
    """Return two documents of sentences with 1 to 6 tokens, whose ids are their positions + 10."""
    lengths = np.array([3, 1, 6, 2, 4, 5, 1, 2])
    ends = np.cumsum(lengths)
    return corpus.Corpus(
        tokens=np.arange(10, 10 + ends[-1], dtype=np.int32),
        begins=ends - lengths,
        ends=ends,
        last_of_document=np.array([4, 4, 4, 4, 4, 7, 7, 7]),
    )


def _examples(count: int = 4000) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    rows = np.random.default_rng(0).choice(_corpus().first_parts(), count)
    tensors = corpus.Corpus(*map(tf.constant, _corpus()))
    seed = tf.constant([1, 2])
    examples = data.build_examples(tf.constant(rows), seed, tensors, SPECIAL, SEQ_LENGTH)
    return rows, {name: tensor.numpy() for name, tensor in examples.items()}


def test_corpus_reads_one_sentence_per_line_and_ends_documents_at_empty_lines(
    files: pathlib.Path,
) -> None:
    text = corpus.load_corpus((str(files / "text.txt"),), str(files / "wordpiece.json"))
    assert text.last_of_document.tolist() == [48] * 49 + [97] * 49
    assert len(text.first_parts()) == 96
    assert text.ends[-1] == len(text.tokens)
    np.testing.assert_array_equal(text.begins[1:], text.ends[:-1])


def test_pretraining_example_consists_of_two_contiguous_text_segments_with_separators() -> None:
    text = _corpus()
    rows, examples = _examples(500)
    for index, row in enumerate(rows):
        example = {name: values[index] for name, values in examples.items()}
        ids = example["input_word_ids"][example["input_mask"] == 1]
        assert np.all(example["input_word_ids"][len(ids) :] == SPECIAL.padding)
        assert (ids[0], ids[-1]) == (SPECIAL.first, SPECIAL.separator)
        (first, second) = np.split(ids, np.flatnonzero(ids == SPECIAL.separator)[:1] + 1)
        first, second = first[1:-1] - 10, second[:-1] - 10
        assert first[0] == text.begins[row]
        for part in (first, second):
            assert len(part)
            np.testing.assert_array_equal(part, np.arange(part[0], part[0] + len(part)))
        is_next = example["next_sentence_labels"][0] == 0
        assert second[0] in text.begins
        assert is_next <= (second[0] > first[-1])
        # The second part does not continue into another document.
        assert len({int(np.searchsorted([16], token, "right")) for token in second}) == 1
        types = example["input_type_ids"]
        assert types.sum() == len(second) + 1
        assert types[len(first) + 2] == 1


def test_second_bert_segment_follows_the_first_in_half_of_the_pretraining_examples() -> None:
    labels = _examples()[1]["next_sentence_labels"]
    # One in eight randomly drawn second parts happens to be the next sentence.
    assert labels.mean() == pytest.approx(0.5 * 7 / 8, abs=0.03)


def test_predicted_tokens_are_masked_replaced_or_kept_in_the_proportions_of_bert() -> None:
    params = configs.BertPretrainDataConfig(seq_length=SEQ_LENGTH, max_predictions_per_seq=6)
    _, examples = _examples()
    tensors = {name: tf.constant(value) for name, value in examples.items()}
    hidden = data.hide(tensors, tf.constant([3, 4]), SPECIAL, 1000, params.replace(mask_rate=0.3))
    after = {name: tensor.numpy() for name, tensor in hidden.items()}
    weights = after["masked_lm_weights"] == 1
    num_words = examples["is_text"].sum(axis=1)
    np.testing.assert_array_equal(weights.sum(axis=1), np.clip(np.round(0.3 * num_words), 1, 6))
    places, words = after["masked_lm_positions"], after["masked_lm_ids"]
    before = np.take_along_axis(examples["input_word_ids"], places, axis=1)
    np.testing.assert_array_equal(before[weights], words[weights])
    assert np.take_along_axis(examples["is_text"], places, axis=1)[weights].all()
    shown = np.take_along_axis(after["input_word_ids"], places, axis=1)[weights]
    shares = [np.mean(shown == SPECIAL.hidden), np.mean(shown == words[weights])]
    assert shares == pytest.approx([0.8, 0.1], abs=0.02)
    changed = after["input_word_ids"] != examples["input_word_ids"]
    assert changed.sum() == np.sum(shown != words[weights])


def _batches(root: pathlib.Path, first: int, count: int) -> list[dict[str, np.ndarray]]:
    params = _params(root).task
    with position.begin_at(first, seed=1) as begin:
        dataset = task.MaskedLMTask(params).build_inputs(params.train_data)
    assert begin.is_kept
    batches = dataset.take(count).as_numpy_iterator()
    return [features | labels for features, labels in batches]


def test_resumed_training_continues_with_the_next_batch(files: pathlib.Path) -> None:
    batches = _batches(files, 0, 16)
    for batch, other in zip(batches[10:], _batches(files, 10, 6), strict=True):
        for name, values in batch.items():
            np.testing.assert_array_equal(values, other[name])


def test_same_text_is_masked_at_different_words_in_different_batches(
    files: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "text.txt").write_text("one and two are here.\n" * 100)
    (tmp_path / "wordpiece.json").symlink_to(files / "wordpiece.json")
    first, second = (batch["masked_lm_positions"] for batch in _batches(tmp_path, 0, 2))
    assert np.mean(np.all(first == second, axis=1)) < 0.5


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_bert_model_ignores_padding_and_has_the_same_outputs_after_loading(
    tmp_path: pathlib.Path,
) -> None:
    keras.utils.set_random_seed(0)
    config = _params(tmp_path).task.model
    bert = model.build_model(config, SEQ_LENGTH, 4)
    rng = np.random.default_rng(0)
    bert.set_weights([rng.normal(0, 0.3, w.shape) for w in bert.get_weights()])
    ids = rng.integers(90, size=(2, SEQ_LENGTH))
    mask = np.arange(SEQ_LENGTH) < [[7], [12]]
    inputs = {
        "input_word_ids": ids,
        "input_mask": mask.astype(np.int32),
        "input_type_ids": np.zeros_like(ids),
        "masked_lm_positions": np.array([[1, 2, 6, 0]] * 2),
    }
    logits = bert(inputs)
    assert logits["mlm_logits"].shape == (2, 4, 90)
    others = bert(inputs | {"input_word_ids": np.where(mask, ids, (ids + 1) % 90)})
    for name, values in logits.items():
        # Attention sums over all positions, each of which is a vector of 16 numbers.
        rounding.assert_close(values, others[name], roundings=SEQ_LENGTH * 16)
    bert.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")(inputs)
    np.testing.assert_array_equal(loaded["next_sentence"], logits["next_sentence"])
    np.testing.assert_array_equal(loaded["mlm_logits"], logits["mlm_logits"])


def test_replica_without_examples_does_not_count_in_the_evaluated_losses(
    files: pathlib.Path, two_replicas: tf.distribute.MirroredStrategy
) -> None:
    params = _params(files)
    # The text has 96 examples. Each replica reads batches of 32, so only one replica gets the last.
    params.task.validation_data.global_batch_size = 64
    with two_replicas.scope():
        bert = task.MaskedLMTask(params.task)
        trainer = trainer_factory.create_trainer(params, bert, train=False, evaluate=True)
        logs = trainer.evaluate(tf.constant(-1))
    assert trainer.steps_run == 2
    losses = float(logs["lm_example_loss"] + logs["next_sentence_loss"])
    assert losses == pytest.approx(float(logs["validation_loss"]), rel=1e-5)


@pytest.mark.slow
def test_bert_pretraining_run_on_text_files_trains_and_evaluates(
    files: pathlib.Path, tmp_path
) -> None:
    params = _params(files)
    params.trainer.train_steps = 2
    _, logs = pipeline.RunPipeline(params, "train_and_eval", str(tmp_path)).run()
    assert logs["lm_example_loss"] == pytest.approx(np.log(90), abs=0.3)
    assert logs["next_sentence_loss"] == pytest.approx(np.log(2), abs=0.1)
    assert 0 <= logs["masked_lm_accuracy"] <= 1


def test_bert_pretraining_records_in_the_model_garden_format_are_read(
    tmp_path: pathlib.Path,
) -> None:
    params = configs.BertPretrainDataConfig(
        input_path=str(tmp_path / "bert.tfrecord"),
        file_type="tfrecord",
        seq_length=8,
        max_predictions_per_seq=2,
        global_batch_size=1,
        is_training=False,
    )
    integers = {
        "input_ids": [2, 10, 4, 3, 12, 13, 3, 0],
        "input_mask": [1] * 7 + [0],
        "segment_ids": [0] * 4 + [1] * 3 + [0],
        "masked_lm_positions": [2, 0],
        "masked_lm_ids": [11, 0],
        "next_sentence_labels": [1],
    }
    example = tf.train.Example()
    for name, values in integers.items():
        example.features.feature[name].int64_list.value.extend(values)
    example.features.feature["masked_lm_weights"].float_list.value.extend([1.0, 0.0])
    with tf.io.TFRecordWriter(params.input_path) as writer:
        writer.write(example.SerializeToString())
    ((features, labels),) = data.read_records(params).as_numpy_iterator()
    assert features["input_word_ids"].tolist() == [integers["input_ids"]]
    assert features["input_type_ids"].tolist() == [integers["segment_ids"]]
    assert labels["next_sentence_labels"].tolist() == [[1]]
    assert labels["masked_lm_weights"].tolist() == [[1.0, 0.0]]


def test_seq_length_that_differs_between_splits_or_exceeds_position_embeddings_is_refused(
    files: pathlib.Path,
) -> None:
    params = _params(files)
    params.task.validation_data.seq_length = 12
    with pytest.raises(errors.ConfigValueError, match=r"\(16, 4\) in .* \(12, 4\) in"):
        task.MaskedLMTask(params.task).build_model()
    params.task.train_data.seq_length = 32
    with pytest.raises(errors.ConfigValueError, match="expected at most `max_position_embeddings`"):
        task.MaskedLMTask(params.task).build_model()


@pytest.mark.slow
def test_final_evaluation_after_training_gives_the_same_metrics_as_eval_mode(
    files: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    evaluations.assert_equal_to_mode_eval(_params(files), tmp_path / "run")
