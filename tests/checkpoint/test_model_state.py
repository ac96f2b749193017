import json
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.checkpoint import model_state, warm_start
from official_lite.common import errors


class Listed(keras.Model):
    """A model with layers in a list and a dict, which TensorFlow's checkpoints omit."""

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


def test_layers_in_lists_and_dicts_are_saved_and_restored(model, tmp_path) -> None:
    path = tf.train.Checkpoint(model=model, **model_state.hidden_items(model)).save(tmp_path / "c")
    values = [v.numpy() for v in model.variables]
    for variable in model.variables:
        variable.assign(np.zeros(variable.shape, variable.dtype))
    again = tf.train.Checkpoint(model=model, **model_state.hidden_items(model))
    again.restore(path).assert_existing_objects_matched()
    for variable, value in zip(model.variables, values, strict=True):
        np.testing.assert_array_equal(variable, value)


def test_only_model_state_that_tensorflow_checkpoints_omit_is_collected_separately(model) -> None:
    items = model_state.hidden_items(model)
    assert len(items["hidden_weights"]) == 2 + 4 + 2
    assert [v.path.endswith("seed_generator_state") for v in items["random_state"]] == [True]


def test_sequential_model_has_no_state_that_tensorflow_checkpoints_omit() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    assert model_state.hidden_items(model) == {}
    assert model_state.hidden_items(tf.Module()) == {}


def test_list_of_layers_in_checkpoint_items_is_saved_and_restored(tmp_path) -> None:
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
def test_state_of_adapted_layers_is_restored_from_a_checkpoint(adapted, tmp_path, items) -> None:
    path = tf.train.Checkpoint(**{"model": adapted, **items(adapted)}).save(tmp_path / "c")
    model = _build()
    again = tf.train.Checkpoint(**{"model": model, **items(model)})
    again.restore(path).assert_existing_objects_matched()
    for found, expected in zip(model.all_outputs(), adapted.all_outputs(), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_restore_replaces_the_vocabulary_unless_the_checkpoint_has_none(adapted, tmp_path) -> None:
    path = tf.train.Checkpoint(**model_state.weight_items(adapted)).save(tmp_path / "c")
    model = _build()
    model.words.adapt(["r", "q", "p"])
    tf.train.Checkpoint(**model_state.weight_items(model)).restore(path)
    assert model.words.get_vocabulary() == ["[UNK]", "y", "x"]
    path = tf.train.Checkpoint(**model_state.weight_items(_build())).save(tmp_path / "before")
    tf.train.Checkpoint(**model_state.weight_items(adapted)).restore(path)
    assert adapted.words.get_vocabulary() == ["[UNK]", "y", "x"]


@pytest.mark.parametrize("modules", ["all", "normalize"])
def test_load_weights_restores_adapted_normalization_statistics(adapted, tmp_path, modules) -> None:
    tf.train.Checkpoint(**model_state.weight_items(adapted)).save(tmp_path / "c")
    model = _build()
    warm_start.load_weights(model, str(tmp_path), modules=modules)
    x = np.array([[3.0, 40.0]])
    np.testing.assert_array_equal(model.normalize(x), adapted.normalize(x))


def test_error_for_mismatched_adapted_layers_lists_those_of_the_checkpoint_and_of_the_model(
    adapted,
) -> None:
    saved = model_state.AdaptedLayers(model_state.find_adaptable_layers(adapted))
    fewer = model_state.AdaptedLayers([adapted.normalize])
    text = r"of the checkpoint are Normalization, .* of the model are Normalization\. To restore"
    with pytest.raises(errors.CheckpointError, match=text):
        fewer.deserialize(saved.serialize())


def test_restoring_adapted_state_into_an_unbuilt_layer_raises(adapted) -> None:
    saved = model_state.AdaptedLayers([adapted.normalize]).serialize()
    unbuilt = model_state.AdaptedLayers([keras.layers.Normalization()])
    with pytest.raises(errors.CheckpointError, match="Call the model once before"):
        unbuilt.deserialize(saved)


def test_mismatched_adapted_layers_raise_if_strict_and_otherwise_keep_their_state(
    adapted, tmp_path
) -> None:
    class More(Adapting):
        def __init__(self) -> None:
            super().__init__()
            self.more_words = keras.layers.IntegerLookup()

    tf.train.Checkpoint(**model_state.weight_items(adapted)).save(tmp_path / "c")
    model = _build(More)
    x = np.array([[3.0, 40.0]])
    with pytest.raises(errors.CheckpointError, match=r"of the model are .*, IntegerLookup\. "):
        warm_start.load_weights(model, str(tmp_path))
    np.testing.assert_array_equal(model.normalize(x), x)
    warm_start.load_weights(model, str(tmp_path), strict=False)
    np.testing.assert_array_equal(model(x), adapted(x))
    assert model.words.get_vocabulary() == ["[UNK]"]


def test_layers_constructed_with_statistics_or_a_vocabulary_are_not_adaptable(tmp_path) -> None:
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


def test_adapted_statistics_are_restored_on_all_replicas(adapted, tmp_path, two_replicas) -> None:
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
    # A commit file stores the description as JSON.
    return json.loads(json.dumps(model_state.describe(model, optimizer)))


def test_checkpoint_description_does_not_depend_on_numbers_in_generated_layer_names() -> None:
    first, second = (_describe(names=(f"dense_{2 * i}", f"dense_{2 * i + 1}")) for i in range(2))
    assert first == second
    model_state.require_same(first, second, "ckpt-1")


def test_checkpoint_description_names_the_optimizer_inside_a_wrapper_optimizer() -> None:
    wrapped = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    assert _describe(wrapped)["optimizer"]["class"] == "LossScaleOptimizer of SGD"


def test_checkpoint_with_layers_in_a_different_order_raises() -> None:
    with pytest.raises(errors.CheckpointError, match="in a different order"):
        model_state.require_same(_describe(), _describe(names=("b", "a")), "ckpt-1")


def test_error_for_a_layer_that_the_checkpoint_lacks_names_the_layer() -> None:
    with pytest.raises(errors.CheckpointError, match="c_kernel_momentum` is new"):
        model_state.require_same(_describe(), _describe(names=("a", "b", "c")), "ckpt-1")


def test_checkpoint_of_a_model_with_a_renamed_layer_or_a_changed_shape_passes_the_description_check(
    caplog,
) -> None:
    model_state.require_same(_describe(), _describe(names=("a", "z")), "ckpt-1")
    assert "by position: `sequential/b/kernel` into `sequential/z/kernel`." in caplog.text
    model_state.require_same(_describe(), _describe(units=3), "ckpt-1")
    model_state.require_same({}, _describe(), "ckpt-1")
    assert model_state.describe(None, None) == {}


def test_checkpoint_description_stores_a_long_variable_list_as_a_count_and_checksum() -> None:
    module = tf.Module()
    module.parts = [tf.Variable(0.0, name=f"v{i}") for i in range(1200)]
    described = model_state.describe(module, None)["model"]
    assert described["count"] == 1200
    assert len(json.dumps(described)) < 200


def test_change_that_prevents_a_bit_exact_resume_logs_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    saved = {"num_replicas": 2, "global_batch_size": 8, "versions": {"tensorflow": "2.21.0"}}
    model_state.warn_of_inexact_state(saved, saved, "ckpt-1")
    model_state.warn_of_inexact_state(saved, {}, "ckpt-1")
    assert not caplog.text
    model_state.warn_of_inexact_state(saved, {**saved, "num_replicas": 4}, "ckpt-1")
    assert "from ckpt-1" in caplog.text
    assert "bit for bit the same: replicas 2 → 4." in caplog.text
