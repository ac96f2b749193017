import keras
import tensorflow as tf

from official_lite.core import model_summary


def _model() -> keras.Model:
    return keras.Sequential([keras.Input((5,)), keras.layers.Dense(3, name="dense")])


def test_parameters_are_counted() -> None:
    model = _model()
    assert model_summary.try_count_params(model) == 5 * 3 + 3
    model.layers[0].trainable = False
    assert model_summary.try_count_params(model, trainable_only=True) is None


def test_flops_of_a_dense_layer_are_two_a_weight_and_one_a_bias() -> None:
    assert model_summary.try_count_flops(_model()) == 2 * 5 * 3 + 3


def test_flops_of_unknown_inputs_are_unknown() -> None:
    assert model_summary.try_count_flops(tf.Module()) is None


def test_list_of_parameters_is_written(tmp_path) -> None:
    model_summary.write_model_params(_model(), str(tmp_path / "params.txt"))
    text = (tmp_path / "params.txt").read_text()
    assert "dense/kernel [5, 3]\n" in text
    assert text.endswith("Total params: 18\n")
