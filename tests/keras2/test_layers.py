"""A layer subclass written for Keras 2 builds, runs and reports as in Keras 2."""

import gin
import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import keras2


@gin.configurable
class Scale(keras2.Layer):
    def __init__(self, factor, name=None):
        super().__init__(self, name=name)
        self.factor = factor

    def build(self, input_shape):
        self.shapes = input_shape
        last = tf.nest.flatten(input_shape)[0][-1]
        self.kernel = self.add_weight(
            "scale/kernel",
            [last],
            initializer="ones",
            aggregation=tf.VariableAggregation.MEAN,
            synchronization=tf.VariableSynchronization.AUTO,
            experimental_autocast=False,
        )

    def call(self, inputs, times=1):
        return tf.nest.flatten(inputs)[0] * self.kernel * self.factor * times


def test_keras2_layer_may_pass_self_to_super_init_and_have_a_slash_in_its_name() -> None:
    layer = Scale(2.0, name="a/b")
    np.testing.assert_array_equal(layer(tf.ones([1, 3])), [[2.0, 2.0, 2.0]])
    assert layer.name == "a_b"
    assert [weight.path for weight in layer.weights] == ["a_b/scale_kernel"]


def test_build_of_a_keras2_layer_receives_tensor_shapes() -> None:
    x = tf.ones([2, 3])
    for inputs in (x, [x, x], {"a": x, "b": x}):
        layer = Scale(1.0)
        layer(inputs)
        shapes = tf.nest.flatten(layer.shapes)
        assert all(isinstance(shape, tf.TensorShape) for shape in shapes)
        assert shapes[0] == tf.TensorShape([2, 3])


def test_layer_accepts_a_number_as_a_positional_call_argument() -> None:
    np.testing.assert_array_equal(Scale(1.0)(tf.ones([1, 2]), 3), [[3.0, 3.0]])


class Remembers(keras2.Layer):
    def call(self, inputs, cache=None):
        cache["seen"]["inputs"] = inputs
        return inputs


def test_caller_sees_entries_that_a_keras2_layer_adds_to_its_dictionary_argument() -> None:
    cache: dict = {"seen": {}}
    Remembers()(3.0, cache)
    assert cache["seen"]["inputs"].numpy() == 3.0


def test_model_with_dictionary_inputs_matches_them_by_name_and_ignores_extra_keys(tmp_path) -> None:
    class Named(keras2.Keras2Habits, keras.Model):
        pass

    image = keras.Input([1], name="image")
    model = Named({"image": image}, {"twice": 2.0 * image})
    given = {"bias": tf.constant([[1.0]]), "image": tf.constant([[5.0]])}
    assert model(given)["twice"].numpy().tolist() == [[10.0]]


class Reports(keras2.Layer):
    def __init__(self):
        super().__init__()
        self.count = self.add_weight(name="count", shape=(), initializer="zeros", trainable=False)

    def call(self, inputs):
        self.add_metric(tf.reduce_mean(inputs), name="mean", aggregation="mean")
        self.add_update(lambda: self.count.assign_add(1.0))
        return inputs


def test_add_metric_and_add_update_take_effect_in_every_layer_call() -> None:
    layer = Reports()
    for value in (1.0, 3.0):
        layer(tf.fill([2, 2], value))
    assert {metric.name: float(metric.result()) for metric in layer.metrics} == {"mean": 2.0}
    assert float(layer.count) == 2.0


class BuildsLate(keras2.Layer):
    def build(self, input_shape):
        self.dense = keras.layers.Dense(5)

    def call(self, inputs):
        if not hasattr(self, "late"):
            self.dense = keras.layers.Dense(2)
            self.late = keras.layers.Dense(3)
        return self.late(self.dense(inputs))


@pytest.mark.parametrize("is_functional", [False, True])
def test_keras2_layer_may_replace_and_create_sublayers_in_call(is_functional: bool) -> None:
    layer = BuildsLate()
    layer(keras.Input((4,)) if is_functional else tf.ones([1, 4]))
    assert layer(tf.ones([1, 4])).shape == (1, 3)
    assert [tuple(weight.shape) for weight in layer.weights] == [(4, 2), (2,), (2, 3), (3,)]


class Halves(keras2.Keras2Habits, keras.layers.Dense):
    def build(self, input_shape):
        assert input_shape.rank == 2
        super().build(input_shape)

    def call(self, inputs):
        return super().call(inputs) / 2


def test_keras_2_mixin_can_be_combined_with_a_subclass_of_keras_dense() -> None:
    layer = Halves(2, kernel_initializer="ones", name="a/b")
    np.testing.assert_array_equal(layer(tf.ones([1, 4])), [[2.0, 2.0]])


class Doubles(keras2.Keras2Habits, keras.Model):
    def __init__(self, units, name=None):
        super().__init__(self, name=name)
        self.dense = keras.layers.Dense(units)

    def call(self, inputs, times=2):
        return times * self.dense(inputs)


class Functional(keras2.Keras2Habits, keras.Model):
    def __init__(self, units, name=None):
        inputs = keras.Input((2,))
        super().__init__(inputs=inputs, outputs=keras.layers.Dense(units)(inputs), name=name)


@pytest.mark.parametrize("cls", [Functional, Doubles])
def test_keras_2_mixin_can_be_combined_with_functional_and_subclassed_models(cls) -> None:
    model = cls(3, name="a/b")
    assert hasattr(model, "inputs") == (cls is Functional)
    model.inputs = {"x": keras.Input((2,))}
    assert len(model.inputs) == 1
    assert model(tf.ones([1, 2])).shape == (1, 3)
    assert (model.name, len(model.weights)) == ("a_b", 2)


class _Private(keras2.Layer):
    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return 2 * inputs


def test_layer_class_name_may_start_with_an_underscore() -> None:
    assert _Private()(tf.ones([1])) == 2


def test_convolution_filters_may_be_a_float_with_an_integer_value() -> None:
    layer = keras2.Layer()
    layer.conv = keras.layers.Conv1D(8 / 2, 1)
    assert layer.conv(tf.ones([1, 2, 3])).shape == (1, 2, 4)


class Bias(keras2.Layer):
    def build(self, input_shape):
        self.bias = tf.Variable(2.0 * tf.ones([input_shape[-1]]))

    def call(self, inputs):
        return inputs + self.bias


def test_tensorflow_variable_assigned_to_a_layer_is_tracked_as_a_weight() -> None:
    inner = Bias(dtype="float32")
    model = keras.Sequential([keras.Input([3]), inner])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tf.ones([2, 3])))
    gradients = tape.gradient(loss, [weight.value for weight in model.trainable_variables])
    np.testing.assert_array_equal(gradients, [[2.0, 2.0, 2.0]])
    inner.bias = inner.bias
    assert len(model.weights) == 1
    model.trainable_variables[0].assign([0.0, 0.0, 0.0])
    np.testing.assert_array_equal(inner.bias, [0.0, 0.0, 0.0])


def test_layer_config_contains_the_dtype_policy_as_a_string() -> None:
    assert Bias(dtype="mixed_bfloat16").get_config()["dtype"] == "mixed_bfloat16"


@pytest.mark.parametrize("place", ["__init__", "build"])
def test_layers_appended_to_a_list_in_a_dictionary_are_tracked(place: str) -> None:
    class Block(keras2.Layer):
        def __init__(self) -> None:
            super().__init__()
            if place == "__init__":
                self.make()

        def build(self, shape) -> None:
            if place == "build":
                self.make()
            super().build(shape)

        def make(self) -> None:
            self.parts = {}
            self.parts["dense"] = []
            self.parts["dense"].append([keras.layers.Dense(2)])

        def call(self, x):
            return self.parts["dense"][0][0](x)

    block = Block()
    block(tf.ones((1, 2)))
    assert len(block.trainable_weights) == 2
    block.parts["dense"][0].append(Scale(2.0))
    block.parts["dense"][0][-1](tf.ones((1, 2)))
    assert len(block.trainable_weights) == 3


class Holder(keras2.Layer):
    """A layer that reassigns its sublayer, which another attribute or container may still hold."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.blocks, self.table = [], {"inner": [[]]}
        self.block = first = keras.layers.Dense(2, name="first")
        if place == "list":
            self.blocks.append(first)
        elif place == "nested list":
            self.table["inner"][0].append(first)
        elif place == "tuple":
            self.pair = (1, [first])
        elif place == "attribute":
            self.other = first
        elif place == "same attribute later":
            self.block = None
        elif place == "list later":
            self.block = None
            self.blocks = [first]
        self.block = first if place == "same attribute later" else keras.layers.Dense(2)

    def build(self, input_shape):
        for layer in {*self._layers}:
            layer.build(input_shape)

    def call(self, inputs):
        return self.block(inputs)


def test_layer_is_tracked_as_long_as_an_attribute_or_container_holds_it() -> None:
    held = dict.fromkeys(("list", "nested list", "tuple", "attribute", "list later"), 4)
    for place, count in {**held, "same attribute later": 2, "nowhere": 2}.items():
        holder = Holder(place)
        holder(tf.ones([1, 2]))
        assert len(holder.weights) == count, place


def test_callable_losses_are_evaluated_when_layer_losses_are_read() -> None:
    class Penalized(keras2.Layer):
        def build(self, shape):
            self.w = self.add_weight("w", [2], initializer="ones")
            for factor in (1.0, 10.0):
                self.add_loss(lambda factor=factor: factor * tf.reduce_sum(self.w))

        def call(self, x):
            self.add_loss(lambda: tf.reduce_sum(x))
            return x * self.w

    layer = Penalized()
    for _ in range(2):
        layer(tf.ones([1, 2]))
    layer.w.assign([3.0, 3.0])
    assert sorted(map(float, layer.losses)) == [2.0, 6.0, 60.0]
