import keras
import tensorflow as tf

from official_lite.modeling import model_summary


def _model() -> keras.Model:
    return keras.Sequential([keras.Input((5,)), keras.layers.Dense(3, name="dense")])


def test_parameter_count_excludes_seed_generator_states() -> None:
    model = keras.Sequential([_model(), keras.layers.Dropout(0.5)])
    assert model_summary.try_count_params(model) == 5 * 3 + 3
    model.layers[0].trainable = False
    assert model_summary.try_count_params(model, trainable_only=True) is None


def test_model_description_has_a_line_for_each_layer_with_parameters() -> None:
    model = keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(3, name="first", trainable=False),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(1000, name="second"),
        ]
    )
    assert model_summary.describe(model) == (
        "The model has 4,018 parameters, 18 of them frozen, in 0.0 MB.\n"
        "  first   Dense  18 (not trained)\n"
        "  second  Dense  4,000"
    )
    layers = [keras.Input((1,)), *(keras.layers.Dense(1) for _ in range(50))]
    *_, last = model_summary.describe(keras.Sequential(layers)).splitlines()
    assert last.split() == ["10", "more", "layers", "20"]


def test_module_without_layers_is_described_only_by_its_number_of_parameters() -> None:
    module = tf.Module()
    assert model_summary.describe(module) is None
    module.weight = tf.Variable([1.0, 2.0])
    assert model_summary.describe(module) == "The model has 2 parameters, in 0.0 MB."


def test_dense_layer_has_two_flops_per_weight_and_one_per_bias() -> None:
    assert model_summary.try_count_flops(_model()) == 2 * 5 * 3 + 3
    assert model_summary.try_count_flops(tf.Module()) is None


def test_parameter_list_is_written_to_a_file(tmp_path) -> None:
    model_summary.write_model_params(_model(), str(tmp_path / "params.txt"))
    text = (tmp_path / "params.txt").read_text()
    assert "dense/kernel [5, 3]\n" in text
    assert text.endswith("Total params: 18\n")
