import keras
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.orbit import hooks

INF = float("inf")


class Burst(keras.layers.Layer):
    """A layer that multiplies its output or gradient by `factor` at one call in training."""

    def __init__(self, call_number, factor=INF, backward=False, name="burst"):
        super().__init__(name=name)
        self.call_number, self.factor, self.backward = call_number, factor, backward

    def build(self, shape):
        self.scale = self.add_weight(name="scale", shape=(), initializer="ones")
        self.calls = self.add_weight(
            name="calls", shape=(), dtype="int32", initializer="zeros", trainable=False
        )

    def call(self, x, training=False):
        if not training:
            return x
        self.calls.assign(self.calls + 1)
        factor = tf.cast(tf.where(self.calls.value == self.call_number, self.factor, 1.0), x.dtype)
        y = x * tf.cast(self.scale.value, x.dtype)
        return _backward_times(y, factor) if self.backward else y * factor


@tf.custom_gradient
def _backward_times(x, factor):
    return tf.identity(x), lambda dy: (dy * factor, None)


@pytest.fixture
def train(make_controller, make_task_trainer, points_task):
    """Return a function that trains 20 steps in one call, with `layers` between two dense ones."""

    def run(hook, *layers, strategy=None, others=(), task_cls=points_task, **kwargs):
        class Task(task_cls):
            def layers(self):
                made = [layer() for layer in layers]
                return [keras.layers.Dense(4, name="bottom"), *made]

        strategy = strategy or tf.distribute.get_strategy()
        with strategy.scope():
            trainer = make_task_trainer(Task, **kwargs)
        make_controller(trainer, hooks=[hook, *others], strategy=strategy).train(20)
        return trainer

    return run


def _report(train, *layers, hook=None, **kwargs):
    with pytest.raises(errors.DivergedError) as error:
        train(hook or hooks.NonFinite(), *layers, **kwargs)
    return str(error.value)


def test_non_finite_report_names_the_step_and_layer_inside_a_compiled_train_loop(train):
    report = _report(train, lambda: Burst(5))
    assert "Step 5 is the first" in report
    assert "the first non-finite output is the output of the layer net/burst (Burst)" in report
    assert "5 of 5 gradients are not finite" in report
    assert "starting at the layer net/bottom: net/bottom/kernel, net/bottom/bias" in report


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "kwargs",
    [
        {"runtime": {"enable_xla": True}},
        {"optimizer": {"ema": {}}},
        {"train_tf_function": False, "train_tf_while_loop": False},
    ],
)
def test_non_finite_report_names_the_step_and_layer_in_all_execution_modes(train, kwargs):
    report = _report(train, lambda: Burst(5), **kwargs)
    assert "Step 5 is" in report
    assert "net/burst (Burst)" in report


def test_non_finite_report_names_the_bad_layer_of_a_loop_that_xla_compiles_as_a_whole(
    train, points_task
):
    class EqualBatches(points_task):
        def build_inputs(self, params, input_context=None):
            examples = super().build_inputs(params, input_context).unbatch()
            return examples.batch(8, drop_remainder=True)

    report = _report(
        train, lambda: Burst(5), task_cls=EqualBatches, runtime={"execution": "xla_loop"}
    )
    assert "Step 5 is" in report
    assert "the first non-finite output is the output of the layer net/burst (Burst)" in report


def test_non_finite_report_counts_updates_rather_than_micro_batches(train):
    report = _report(train, lambda: Burst(6), grad_accum_steps=2)
    assert "Step 3 is" in report
    assert "loss is nan" in report or "loss is inf" in report


def test_non_finite_report_names_the_replica(train, points_task, two_replicas):
    class OneBadHalf(points_task):
        def train_step(self, inputs, model, optimizer, metrics=None):
            x, y = inputs
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            x = x * tf.where((optimizer.iterations == 4) & (replica == 1), INF, 1.0)
            return super().train_step((x, y), model, optimizer, metrics)

    report = _report(train, task_cls=OneBadHalf, strategy=two_replicas)
    assert "Step 5 is" in report
    assert "on replica 1" in report
    assert "the inputs of the model are not" in report


def test_non_finite_gradients_of_a_finite_loss_point_to_the_backward_pass(train):
    report = _report(train, lambda: Burst(5, backward=True))
    assert "Step 5 is" in report
    assert "the loss are finite, so the backward pass is the cause" in report
    assert "3 of 5 gradients are not finite" in report
    assert "check net/burst/scale" in report


def test_non_finite_loss_of_finite_outputs_points_to_the_loss_function(train, points_task):
    class BadLoss(points_task):
        def build_losses(self, labels, model_outputs, aux_losses=None):
            return super().build_losses(labels, model_outputs) + tf.stop_gradient(
                tf.math.log(tf.reduce_min(labels) * 0.0)
            )

    report = _report(train, task_cls=BadLoss)
    assert "Step 1 is" in report
    assert "Check the labels and the loss function" in report
    assert "All gradients are finite." in report


def test_variable_that_was_non_finite_before_the_step_is_named_in_the_report(train):
    class Exploding(hooks.GraphHook):
        def call(self, logs):
            bias = self.trainer.model.get_layer("top").bias
            bias.assign(tf.where(self.trainer.global_step == 3, INF, bias.value))

    with pytest.raises(errors.DivergedError, match="before this step: net/top/bias"):
        train(hooks.NonFinite(), others=[Exploding()])


def test_non_finite_report_suggests_layers_true_if_layers_is_false(train):
    report = _report(train, lambda: Burst(5), hook=hooks.NonFinite(layers=False))
    assert "Step 5 is" in report
    assert "(`layers=True`)" in report


@pytest.mark.usefixtures("float16_kernels")
def test_overflow_skipped_by_loss_scaling_is_not_reported_as_divergence(train):
    trainer = train(
        hooks.NonFinite(),
        runtime={"mixed_precision_dtype": "float16"},
        optimizer={"optimizer": {"type": "sgd"}},
    )
    assert int(trainer.optimizer.iterations) < 20
    assert int(trainer.global_step) == 20


@pytest.mark.usefixtures("float16_kernels")
def test_non_finite_loss_is_reported_even_with_loss_scaling(train):
    report = _report(train, lambda: Burst(5), runtime={"mixed_precision_dtype": "float16"})
    assert "Step 5 is" in report
    assert "Loss scaling skips" in report


def test_non_finite_values_are_logged_without_an_error_if_stop_is_false(train, log_lines):
    train(hooks.NonFinite(stop=False), lambda: Burst(5))
    assert sum("Step 5 is the first" in line for line in log_lines) == 1


def test_non_finite_report_is_added_as_a_note_to_an_earlier_error(train):
    class Failing(hooks.NonFinite):
        def after_step(self):
            raise KeyError("x")

    with pytest.raises(KeyError) as error:
        train(Failing(), lambda: Burst(5))
    assert "Step 5 is" in error.value.__notes__[0]


def test_non_finite_step_is_reported_again_after_an_older_checkpoint_is_restored(
    train, make_controller, log_lines, tmp_path
):
    hook = hooks.NonFinite(stop=False)
    trainer = train(hook, lambda: Burst(25))
    manager = tf.train.CheckpointManager(trainer.checkpoint, str(tmp_path), max_to_keep=1)
    controller = make_controller(trainer, hooks=[hook], checkpoint_manager=manager)
    saved = controller.save_checkpoint()
    for _ in range(2):
        controller.restore_checkpoint(saved)
        controller.train(30)
    assert sum("Step 25 is the first" in line for line in log_lines) == 2


def test_non_finite_hook_restores_the_call_method_of_each_layer_after_tracing(train):
    trainer = train(hooks.NonFinite())
    assert all("call" not in vars(layer) for layer in trainer.model.layers)


def test_non_finite_hook_keeps_a_call_method_that_a_user_assigned_to_a_layer(train):
    def doubled():
        layer = keras.layers.Dense(3, name="doubled")
        call = layer.call
        layer.call = lambda x, **kwargs: 2.0 * call(x, **kwargs)
        return layer

    layer = train(hooks.NonFinite(), doubled).model.get_layer("doubled")
    x = tf.ones((1, 4))
    single = tf.matmul(x, layer.kernel.value) + layer.bias.value
    tf.debugging.assert_near(layer(x), 2.0 * single)


# Keras triggers this warning when it quantizes.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_non_finite_report_names_a_quantized_layer(train):
    calls = tf.Variable(0, trainable=False)

    def burst(x):
        calls.assign_add(1)
        return x * tf.where(calls == 5, INF, 1.0)

    def quantized():
        layer = keras.layers.Dense(3, activation=burst, name="quantized")
        layer.build((None, 4))
        layer.quantize("int8")
        return layer

    report = _report(train, quantized, hook=hooks.NonFinite(layers=True))
    assert "output is the output of the layer quantized (Dense)" in report
