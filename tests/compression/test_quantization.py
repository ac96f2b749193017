import collections

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors, keras_variables
from official_lite.compression import configs, quantization
from official_lite.modeling import model_export
from tests.compression import quarters

# Keras itself, when it writes a model.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class NormalizedTask(quarters.QuarterTask):
    model_fn = staticmethod(lambda: quarters.functional(normalize=True))


class SequentialTask(quarters.QuarterTask):
    """Has the layers that XLA compiles quickly."""

    model_fn = staticmethod(
        lambda: keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                keras.layers.Flatten(),
                keras.layers.Dense(8, use_bias=False),
                keras.layers.BatchNormalization(),
                keras.layers.ReLU(),
                keras.layers.Dropout(0.1),
                keras.layers.Dense(4),
            ]
        )
    )


class DenseTask(quarters.QuarterTask):
    """Has no statistics of the batches of a replica."""

    model_fn = staticmethod(
        lambda: keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                keras.layers.Flatten(),
                keras.layers.Dense(8, activation="relu"),
                keras.layers.Dense(4),
            ]
        )
    )


def _equal(one, two, **tolerance) -> None:
    for a, b in zip(one.variables, two.variables, strict=True):
        if tolerance:
            np.testing.assert_allclose(a.numpy(), b.numpy(), **tolerance, err_msg=a.path)
        else:
            np.testing.assert_array_equal(a.numpy(), b.numpy(), err_msg=a.path)


@pytest.mark.parametrize(
    ("task_cls", "execution"),
    [
        (NormalizedTask, "graph"),
        (SequentialTask, "graph"),
        (SequentialTask, "xla"),
        (SequentialTask, "xla_loop"),
    ],
)
def test_resumed_run_equals_the_unbroken_one(tmp_path, task_cls, execution) -> None:
    given = {"task_cls": task_cls, "runtime": {"execution": execution}}
    whole = quarters.train(tmp_path / "whole", steps=4, **given)
    quarters.train(tmp_path / "parts", steps=2, **given)
    _equal(whole, quarters.train(tmp_path / "parts", steps=4, **given))
    assert float(whole.range_updates) == 4


@pytest.mark.parametrize("execution", ["graph", "xla"])
def test_two_replicas_compute_what_one_does(tmp_path, two_replicas, execution) -> None:
    given = {"steps": 6, "task_cls": DenseTask, "runtime": {"execution": execution}}
    one = quarters.train(tmp_path / "one", **given)
    two = quarters.train(tmp_path / "two", strategy=two_replicas, **given)
    _equal(one, two, atol=1e-5, rtol=1e-5)


def test_float_run_initializes_a_quantized_one(tmp_path) -> None:
    trained = quarters.train(tmp_path / "float", task={"compression": None})
    still = {"optimizer_config": {"learning_rate": {"constant": {"learning_rate": 0.0}}}}
    task = {"init_checkpoint": str(tmp_path / "float")}
    warm = quarters.train(tmp_path / "warm", steps=1, task=task, trainer=still)
    own = [v for v in warm.weights if not keras_variables.is_optional(v)]
    for found, wanted in zip(own, trained.weights, strict=True):
        np.testing.assert_array_equal(found.numpy(), wanted.numpy())


class _Data:
    global_batch_size = 64
    is_training = False


def test_file_of_litert_computes_in_integers_only(tmp_path) -> None:
    interpreters = pytest.importorskip("ai_edge_litert.interpreter")
    model = quarters.train(tmp_path / "run", task_cls=NormalizedTask, steps=20)
    path = str(tmp_path / "model.tflite")
    model_export.write_model(model, path, "litert")
    interpreter = interpreters.Interpreter(
        model_path=path,
        experimental_op_resolver_type=(
            interpreters.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        ),
    )
    kinds = collections.Counter(
        np.dtype(tensor["dtype"]).name for tensor in interpreter.get_tensor_details()
    )
    assert set(kinds) == {"float32", "int8", "int32"}
    # The input and the output.
    assert kinds["float32"] == 2
    x = next(iter(quarters.QuarterTask.build_inputs(None, _Data())))[0].numpy()
    (found,) = interpreter.get_signature_runner()(image=x).values()
    step = np.ptp(model.activation_ranges.numpy()[-1]) / 255
    assert np.abs(found - model(x)).max() < 4 * step


def test_keras_file_keeps_the_quantization(tmp_path) -> None:
    model = quarters.train(tmp_path / "run", task_cls=NormalizedTask)
    model_export.write_model(model, str(tmp_path / "m.keras"), "keras")
    loaded = keras.models.load_model(tmp_path / "m.keras", compile=False)
    x = tf.random.stateless_normal((4, 8, 8, 1), (1, 2))
    np.testing.assert_array_equal(loaded(x), model(x))
    assert len(np.unique(np.round(np.asarray(loaded(x)), 6))) < 256


@pytest.mark.parametrize(
    ("model", "config", "message"),
    [
        (lambda: keras.Sequential([keras.layers.Dense(2)]), {}, "keras.Input"),
        (lambda: keras.Model(), {}, "Only functional and sequential"),
        (quarters.functional, {"include": ["head"]}, "'head', which matches no layer"),
        (quarters.functional, {"include": ["image"]}, "quantizes no layer"),
        (
            lambda: keras.Sequential([keras.Input((3, 2)), keras.layers.LSTM(2, name="memory")]),
            {},
            "'memory' is a LSTM",
        ),
    ],
)
def test_what_cannot_be_quantized_is_refused(model, config, message) -> None:
    with pytest.raises(errors.ConfigValueError, match=message):
        quantization.quantize(model(), configs.QuantizationConfig(config))
