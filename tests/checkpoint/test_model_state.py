import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.checkpoint import model_state


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


def test_only_what_would_be_lost_is_listed(model) -> None:
    items = model_state.hidden_items(model)
    assert len(items["hidden_weights"]) == 2 + 4 + 2
    assert [v.path.endswith("seed_generator_state") for v in items["random_state"]] == [True]


def test_nothing_is_added_to_a_plain_model() -> None:
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
