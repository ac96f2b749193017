import json
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.checkpoint import model_state, warm_start
from official_lite.common import errors


class Listed(keras.Model):
    """Keeps layers where TensorFlow does not look."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [keras.layers.Dense(3), keras.layers.BatchNormalization()]
        self.heads = {"a": keras.layers.Dense(1)}
        self.plain = keras.layers.Dense(2)
        self.dropout = keras.layers.Dropout(0.5)

    def call(self, x, training=False):
        for block in self.blocks:
            x = block(x)
        return self.heads["a"](self.dropout(self.plain(x), training=training))


@pytest.fixture
def model() -> keras.Model:
    model = Listed()
    model(tf.ones((2, 4)))
    return model


def test_layers_in_lists_and_dicts_are_saved(model, tmp_path) -> None:
    path = tf.train.Checkpoint(model=model, **model_state.hidden_items(model)).save(tmp_path / "c")
    values = [v.numpy() for v in model.variables]
    for variable in model.variables:
        variable.assign(np.zeros(variable.shape, variable.dtype))
    again = tf.train.Checkpoint(model=model, **model_state.hidden_items(model))
    again.restore(path).assert_existing_objects_matched()
    for variable, value in zip(model.variables, values, strict=True):
        np.testing.assert_array_equal(variable, value)


def test_only_state_that_tensorflow_omits_is_listed(model) -> None:
    items = model_state.hidden_items(model)
    assert len(items["hidden_weights"]) == 2 + 4 + 2
    assert [v.path.endswith("seed_generator_state") for v in items["random_state"]] == [True]


def test_checkpoint_of_a_plain_model_gets_no_additional_entries() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    assert model_state.hidden_items(model) == {}
    assert model_state.hidden_items(tf.Module()) == {}


def test_list_of_heads_among_the_checkpoint_items_is_saved(tmp_path) -> None:
    class Heads(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.heads = [keras.layers.Dense(1), keras.layers.Dense(2)]
            for head in self.heads:
                head.build((None, 3))

        @property
        def checkpoint_items(self) -> dict[str, list[keras.Layer]]:
            return {"heads": self.heads}

    saved, restored = Heads(), Heads()
    path = tf.train.Checkpoint(**model_state.checkpoint_items(saved)).write(str(tmp_path / "c"))
    status = tf.train.Checkpoint(**model_state.checkpoint_items(restored)).read(path)
    status.assert_consumed()
    assert (restored.heads[1].kernel.numpy() == saved.heads[1].kernel.numpy()).all()


class Adapting(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        layers = keras.layers
        self.normalize = layers.Normalization()
        self.in_a_list = [layers.Discretization(num_bins=3), layers.IntegerLookup()]
        self.words = layers.StringLookup()
        self.text = layers.TextVectorization(output_mode="tf_idf")
        self.given = layers.Normalization(mean=1.0, variance=2.0)
        self.dense = layers.Dense(1)

    def build(self, input_shape):
        self.normalize.build(input_shape)
        self.given.build(input_shape)
        self.dense.build(input_shape)

    def call(self, x):
        return self.dense(self.given(self.normalize(x)))

    def all_outputs(self) -> list[np.ndarray]:
        bins, numbers = self.in_a_list
        return [
            np.asarray(output)
            for output in (
                self(np.array([[3.0, 40.0]])),
                bins(np.array([3.0])),
                numbers(np.array([7])),
                self.words(["y", "z"]),
                self.text(["a c"]),
            )
        ]


def _build(cls: type[Adapting] = Adapting) -> Adapting:
    keras.utils.set_random_seed(1)
    model = cls()
    model(np.zeros((1, 2)))
    return model


@pytest.fixture
def adapted() -> Adapting:
    model = _build()
    model.normalize.adapt(np.arange(12.0).reshape(6, 2))
    bins, numbers = model.in_a_list
    bins.adapt(np.arange(10.0))
    numbers.adapt(np.array([[5], [5], [7]]))
    model.words.adapt(["x", "y"])
    model.text.adapt(["a b", "a c"])
    return model


@pytest.mark.parametrize("items", [model_state.hidden_items, model_state.weight_items])
def test_state_of_adapted_layers_is_restored(adapted, tmp_path, items) -> None:
    path = tf.train.Checkpoint(**{"model": adapted, **items(adapted)}).save(tmp_path / "c")
    model = _build()
    again = tf.train.Checkpoint(**{"model": model, **items(model)})
    again.restore(path).assert_existing_objects_matched()
    for found, expected in zip(model.all_outputs(), adapted.all_outputs(), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_vocabulary_of_the_checkpoint_replaces_another_unless_it_was_not_learned_yet(
    adapted, tmp_path
) -> None:
    path = tf.train.Checkpoint(**model_state.weight_items(adapted)).save(tmp_path / "c")
    model = _build()
    model.words.adapt(["r", "q", "p"])
    tf.train.Checkpoint(**model_state.weight_items(model)).restore(path)
    assert model.words.get_vocabulary() == ["[UNK]", "y", "x"]
    path = tf.train.Checkpoint(**model_state.weight_items(_build())).save(tmp_path / "before")
    tf.train.Checkpoint(**model_state.weight_items(adapted)).restore(path)
    assert adapted.words.get_vocabulary() == ["[UNK]", "y", "x"]


@pytest.mark.parametrize("modules", ["all", "normalize"])
def test_adapted_statistics_loaded_from_another_run_normalize_the_inputs(
    adapted, tmp_path, modules
) -> None:
    tf.train.Checkpoint(**model_state.weight_items(adapted)).save(tmp_path / "c")
    model = _build()
    warm_start.load_weights(model, str(tmp_path), modules=modules)
    x = np.array([[3.0, 40.0]])
    np.testing.assert_array_equal(model.normalize(x), adapted.normalize(x))


def test_checkpoint_of_other_adapted_layers_names_both(adapted) -> None:
    saved = model_state.AdaptedLayers(model_state.find_adaptable_layers(adapted))
    fewer = model_state.AdaptedLayers([adapted.normalize])
    text = r"of the checkpoint are Normalization, .* of the model are Normalization\.$"
    with pytest.raises(errors.CheckpointError, match=text):
        fewer.deserialize(saved.serialize())


def test_layer_that_is_not_built_can_not_be_restored(adapted) -> None:
    saved = model_state.AdaptedLayers([adapted.normalize]).serialize()
    unbuilt = model_state.AdaptedLayers([keras.layers.Normalization()])
    with pytest.raises(errors.CheckpointError, match="Call the model once before"):
        unbuilt.deserialize(saved)


def test_other_adapted_layers_keep_their_state_if_not_strict(adapted, tmp_path) -> None:
    class More(Adapting):
        def __init__(self) -> None:
            super().__init__()
            self.more_words = keras.layers.IntegerLookup()

    tf.train.Checkpoint(**model_state.weight_items(adapted)).save(tmp_path / "c")
    model = _build(More)
    x = np.array([[3.0, 40.0]])
    with pytest.raises(errors.CheckpointError, match=r"of the model are .*, IntegerLookup\.$"):
        warm_start.load_weights(model, str(tmp_path))
    np.testing.assert_array_equal(model.normalize(x), x)
    warm_start.load_weights(model, str(tmp_path), strict=False)
    np.testing.assert_array_equal(model(x), adapted(x))
    assert model.words.get_vocabulary() == ["[UNK]"]


def test_layers_with_given_statistics_or_words_are_not_adapted(tmp_path) -> None:
    (tmp_path / "words.txt").write_text("x\ny")
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((1,), dtype="string"),
            layers.StringLookup(vocabulary=str(tmp_path / "words.txt")),
            layers.Normalization(mean=0.0, variance=1.0),
            layers.Discretization(bin_boundaries=[0.0]),
        ]
    )
    assert model_state.find_adaptable_layers(model) == []
    assert "adapted_layers" not in model_state.weight_items(model)


def test_statistics_are_restored_on_all_replicas(adapted, tmp_path, two_replicas) -> None:
    path = tf.train.Checkpoint(**model_state.weight_items(adapted)).save(tmp_path / "c")
    with two_replicas.scope():
        model = _build()
    tf.train.Checkpoint(**model_state.weight_items(model)).restore(path)
    x = tf.constant([[3.0, 40.0]])
    for output in two_replicas.experimental_local_results(two_replicas.run(model, (x,))):
        np.testing.assert_array_equal(output, adapted(x))


def _describe(optimizer: Any = None, names: tuple[str, ...] = ("a", "b"), units: int = 2) -> Any:
    model = keras.Sequential([keras.Input((2,))])
    for name in names:
        model.add(keras.layers.Dense(units, name=name))
    optimizer = optimizer or keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    # As it comes back from a commit file.
    return json.loads(json.dumps(model_state.describe(model, optimizer)))


def test_description_does_not_depend_on_the_numbers_in_names_of_layers() -> None:
    first, second = (_describe(names=(f"dense_{2 * i}", f"dense_{2 * i + 1}")) for i in range(2))
    assert first == second
    model_state.require_same(first, second, "ckpt-1")


def test_wrapped_optimizer_is_described_with_the_one_that_it_wraps() -> None:
    wrapped = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    assert _describe(wrapped)["optimizer"]["class"] == "LossScaleOptimizer of SGD"


def test_checkpoint_of_layers_in_another_order_is_refused() -> None:
    with pytest.raises(errors.CheckpointError, match="in a different order"):
        model_state.require_same(_describe(), _describe(names=("b", "a")), "ckpt-1")


def test_checkpoint_without_a_new_layer_is_refused_and_the_layer_named() -> None:
    with pytest.raises(errors.CheckpointError, match="c_kernel_momentum` is new"):
        model_state.require_same(_describe(), _describe(names=("a", "b", "c")), "ckpt-1")


def test_renamed_layer_and_another_shape_are_not_refused() -> None:
    model_state.require_same(_describe(), _describe(names=("a", "z")), "ckpt-1")
    model_state.require_same(_describe(), _describe(units=3), "ckpt-1")
    model_state.require_same({}, _describe(), "ckpt-1")
    assert model_state.describe(None, None) == {}


def test_long_list_of_variables_is_represented_by_its_checksum() -> None:
    module = tf.Module()
    module.parts = [tf.Variable(0.0, name=f"v{i}") for i in range(1200)]
    described = model_state.describe(module, None)["model"]
    assert described["count"] == 1200
    assert len(json.dumps(described)) < 200


def test_changes_that_prevent_a_bit_exact_resume_are_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    saved = {"num_replicas": 2, "global_batch_size": 8, "versions": {"tensorflow": "2.21.0"}}
    model_state.warn_of_inexact_state(saved, saved, "ckpt-1")
    model_state.warn_of_inexact_state(saved, {}, "ckpt-1")
    assert not caplog.text
    model_state.warn_of_inexact_state(saved, {**saved, "num_replicas": 4}, "ckpt-1")
    assert "from ckpt-1" in caplog.text
    assert "bit for bit the same: replicas 2 → 4." in caplog.text
