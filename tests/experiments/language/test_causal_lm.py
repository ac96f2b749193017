"""Shared parts of the GPT experiments: the model, windows of text, and generation."""

import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from experiments.language.causal_lm import configs, data, generate, model, task
from experiments.language.transformer import layers
from official_lite.common import errors
from official_lite.data import position
from tests import rounding

SEQ_LENGTH = 8
# The number of roundings in two layers with sums over 4 * 16 units.
ROUNDINGS = 2 * 4 * 16


def _config(**fields) -> configs.GptModelConfig:
    return configs.GptModelConfig(
        vocab_size=0,
        seq_length=SEQ_LENGTH,
        num_layers=2,
        num_attention_heads=2,
        hidden_size=16,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        ngram_sizes=(2, 3),
        ngram_rows=50,
    ).replace(**fields)


def _randomized(config: configs.GptModelConfig, vocab_size: int = 10) -> keras.Model:
    """Build a model whose weights, including n-gram rows, are large enough to change the logits."""
    keras.utils.set_random_seed(0)
    gpt = model.build_model(config, vocab_size)
    rng = np.random.default_rng(0)
    gpt.set_weights([rng.normal(0, 0.5, w.shape) for w in gpt.get_weights()])
    return gpt


@pytest.mark.parametrize(
    ("positions", "ngram_sizes"), [("learned", ()), ("rotary", ()), ("learned", (2, 3))]
)
def test_logits_depend_only_on_past_tokens_and_on_their_order(positions, ngram_sizes) -> None:
    gpt = _randomized(_config(positions=positions, ngram_sizes=ngram_sizes))
    tokens = np.random.default_rng(0).integers(10, size=(1, SEQ_LENGTH))
    changed = tokens.copy()
    changed[0, 4] = (changed[0, 4] + 1) % 10
    before, after = gpt(tokens).numpy()[0], gpt(changed).numpy()[0]
    rounding.assert_close(after[:4], before[:4], roundings=ROUNDINGS)
    assert np.all(np.abs(before[4:] - after[4:]).max(axis=1) > 1e-4)
    swapped = np.array([[1, 2, 3, 4, 5, 6, 7, 8], [2, 1, 3, 4, 5, 6, 7, 8]])
    one, other = gpt(swapped).numpy()[:, -1]
    assert np.abs(one - other).max() > 1e-4


def test_rotary_attention_depends_only_on_relative_positions() -> None:
    rng = np.random.default_rng(0)
    qkv = rng.normal(size=(1, 6, 24)).astype(np.float32)
    moved = np.concatenate([rng.normal(size=(1, 3, 24)).astype(np.float32), qkv], axis=1)
    visible = np.array([[0, 0, 0, 1, 1, 1, 1, 1, 1]])
    attention = layers.Attention(2, is_causal=True, is_rotary=True)
    there = attention(moved, visible).numpy()[0, 3:]
    # Attention sums over nine positions, each of which is a vector of 24 numbers.
    rounding.assert_close(there, attention(qkv).numpy()[0], roundings=9 * 24)
    unturned = layers.Attention(2, is_causal=True)(qkv).numpy()[0]
    assert np.abs(there - unturned).max() > 1e-3


def test_untrained_model_has_the_loss_of_a_uniform_distribution() -> None:
    keras.utils.set_random_seed(0)
    gpt = model.build_model(_config(), 10)
    tokens = np.random.default_rng(0).integers(10, size=(50, SEQ_LENGTH + 1))
    loss = task.mean_cross_entropy(tokens[:, 1:], gpt(tokens[:, :-1]))
    assert float(loss) == pytest.approx(np.log(10), abs=0.02)


def test_residual_output_layers_have_a_smaller_initial_stddev() -> None:
    keras.utils.set_random_seed(0)
    gpt = model.build_model(_config(hidden_size=64, num_layers=8), 10)
    stddev = {w.path.split("/")[0]: np.std(w.numpy()) for w in gpt.weights if "kernel" in w.path}
    assert stddev["block_3_up"] == pytest.approx(0.02, rel=0.1)
    assert stddev["block_3_down"] == pytest.approx(0.02 / 4, rel=0.1)
    assert stddev["block_5_project"] == pytest.approx(0.02 / 4, rel=0.1)
    assert len(set(stddev.values())) == len(stddev)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_loaded_gpt_model_has_the_same_outputs_as_the_saved_one(tmp_path: pathlib.Path) -> None:
    gpt = _randomized(_config(dropout_rate=0.1, attention_dropout_rate=0.1))
    tokens = np.random.default_rng(0).integers(10, size=(2, SEQ_LENGTH))
    gpt.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(tokens), gpt(tokens))


def test_equal_ngrams_share_a_row_and_ngrams_of_different_sizes_use_separate_rows() -> None:
    rows = model.NgramRows((2, 3), 1000)(tf.constant([[1, 2, 3, 9, 2, 3, 5]])).numpy()[0]
    assert rows[2, 0] == rows[5, 0]
    assert rows[2, 1] != rows[5, 1]
    assert len({*rows[:, 0]}) == 6
    assert rows[:, 0].max() < 1000 <= rows[:, 1].min()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 15}, "`hidden_size` is 15, which is not divisible by .* 2"),
        ({"positions": "rotary", "hidden_size": 6}, "an even number of units .* is 3"),
        ({"ngram_rows": 0}, "requires `ngram_rows` > 0; got 0"),
        ({"ngram_rows": 2**17}, "expected at most 65536"),
    ],
)
def test_invalid_gpt_model_config_is_refused(fields, message) -> None:
    with pytest.raises(errors.ConfigValueError, match=message):
        _config(**fields).validate()


@pytest.mark.parametrize(("context", "length"), [(0, 16), (3, 17), (7, 30), (7, 9)])
def test_evaluation_predicts_every_token_except_the_first_exactly_once(
    context: int, length: int
) -> None:
    tokens = np.arange(length)
    inputs, labels = data.evaluation_stretches(tokens, SEQ_LENGTH, context)
    counts = labels != data.NOT_COUNTED
    assert sorted(labels[counts]) == [*range(1, length)]
    np.testing.assert_array_equal(labels[counts], inputs[counts] + 1)
    seen = np.broadcast_to(np.arange(SEQ_LENGTH), labels.shape)[counts] + 1
    assert np.all(seen > np.minimum(context, inputs[counts]))
    with pytest.raises(errors.DataError, match="8 tokens"):
        data.build_dataset(np.arange(8), SEQ_LENGTH, _train_data())


def _train_data(**fields) -> configs.CausalLmDataConfig:
    return configs.CausalLmConfig().train_data.replace(global_batch_size=5, seed=3, **fields)


def _batches(first: int, count: int) -> list[np.ndarray]:
    with position.begin_at(first, seed=1) as begin:
        dataset = data.build_dataset(np.arange(85, dtype=np.uint8), SEQ_LENGTH, _train_data())
    assert begin.is_kept
    return [*dataset.take(count).as_numpy_iterator()]


def test_training_windows_depend_only_on_the_batch_number() -> None:
    batches = _batches(0, 6)
    for (inputs, labels), (others, _) in zip(batches[3:], _batches(3, 3), strict=True):
        np.testing.assert_array_equal(inputs, others)
        np.testing.assert_array_equal(labels, inputs + 1)
    # One window begins in each group of 8 tokens, at a different offset in each epoch.
    epochs = np.sort(np.concatenate([inputs[:, 0] for inputs, _ in batches]).reshape(3, -1))
    np.testing.assert_array_equal(np.minimum(epochs // 8, 9), [[*range(10)]] * 3)
    places = [inputs[:, 0] % 8 for inputs, _ in batches]
    assert not any(np.array_equal(places[0], others) for others in places[1:])


def test_bits_per_token_is_averaged_over_batches_without_excluded_labels() -> None:
    bits = task.BitsPerToken()
    logits = np.log([[[0.5, 0.5], [0.25, 0.75]], [[0.9, 0.1], [0.125, 0.875]]]).astype(np.float32)
    bits.update_state(np.array([[0, 0]]), logits[:1])
    bits.update_state(np.array([[data.NOT_COUNTED, 0]]), logits[1:])
    assert float(bits.result()) == pytest.approx((1 + 2 + 3) / 3)


def test_generated_tokens_depend_on_seed_and_temperature() -> None:
    gpt = _randomized(_config())
    prompt = [1, 2]

    def go_on(**arguments) -> list[int]:
        return generate.generate(gpt, prompt, 12, **arguments)

    assert go_on(seed=1) == go_on(seed=1) != go_on(seed=2)
    greedy = go_on(temperature=0)
    assert greedy == go_on(top_k=1) == go_on(temperature=1e-3)
    # The model sees at most the last `seq_length` tokens.
    tokens = prompt + greedy
    for number in (2, 7, 8, 13):
        window = (tokens[:number] + [0] * SEQ_LENGTH)[:SEQ_LENGTH]
        if number > SEQ_LENGTH:
            window = tokens[number - SEQ_LENGTH : number]
        logits = gpt(np.array([window]))[0, min(number, SEQ_LENGTH) - 1]
        assert int(np.argmax(logits)) == tokens[number]
