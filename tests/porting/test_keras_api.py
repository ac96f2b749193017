import keras
import pytest

from official_lite.porting import keras_api


@pytest.mark.parametrize(
    ("name", "gone"),
    [
        ("keras.layers.Dense", None),
        ("keras.layers.Dense.from_config", None),
        ("keras.Model", None),
        ("keras.backend.learning_phase", "keras.backend.learning_phase"),
        ("keras.layers.experimental.preprocessing.Resizing", "keras.layers.experimental"),
        ("keras.estimator", "keras.estimator"),
    ],
)
def test_what_keras_lacks(name: str, gone: str | None) -> None:
    assert keras_api.missing(name) == gone


def test_all_that_keras_shows_is_there() -> None:
    shown = [f"keras.layers.{name}" for name in dir(keras.layers) if not name.startswith("_")]
    assert [name for name in shown if keras_api.missing(name)] == []
