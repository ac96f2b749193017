import math
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.core import train_lib
from official_lite.modeling import optimization
from official_lite.orbit import hooks
from tests import rounding

# Keras itself triggers this warning with NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

INPUTS = np.float32([[1.0], [3.0]])
LOAD_AND_PREDICT = """
import sys, keras, numpy, tensorflow
path, is_keras, out = sys.argv[1], sys.argv[2] == "keras", sys.argv[3]
inputs = numpy.float32([[1.0], [3.0]])
if is_keras:
    outputs = keras.models.load_model(path)(inputs)
else:
    model = tensorflow.saved_model.load(path)
    outputs = model.serve(inputs)
numpy.save(out, numpy.asarray(outputs))
"""


def _names(tmp_path):
    return sorted(path.name for path in (tmp_path / "export").iterdir())


def test_model_is_exported_every_n_steps_and_at_the_end_of_training(
    make_keras_trainer, make_controller, tmp_path
):
    trainer = make_keras_trainer()
    hook = hooks.ExportModel(every_n_steps=2)
    make_controller(trainer, hooks=[hook], model_dir=tmp_path).train(5)
    assert _names(tmp_path) == ["2.keras", "4.keras", "5.keras"]
    exported = keras.models.load_model(tmp_path / "export/5.keras")
    np.testing.assert_array_equal(exported(INPUTS), trainer.model(INPUTS))


def test_export_replaces_the_model_that_an_earlier_run_exported_at_the_same_step(
    make_keras_trainer, make_controller, tmp_path
):
    for _ in range(2):
        hook = hooks.ExportModel(format="tf_saved_model")
        make_controller(make_keras_trainer(), hooks=[hook], model_dir=tmp_path).train(3)
    assert _names(tmp_path) == ["3"]


def test_export_hook_reused_in_a_second_run_leaves_the_exports_of_the_first_run_unchanged(
    make_keras_trainer, make_controller, tmp_path
):
    hook = hooks.ExportModel()
    for name, steps in (("first", 3), ("second", 2)):
        controller = make_controller(make_keras_trainer(), hooks=[hook], model_dir=tmp_path / name)
        controller.train(steps)
        assert _names(tmp_path / name) == [f"{steps}.keras"]
    assert _names(tmp_path / "first") == ["3.keras"]


def test_second_train_call_from_an_earlier_step_removes_the_exports_of_later_steps(
    make_keras_trainer, make_controller, tmp_path
):
    trainer = make_keras_trainer()
    hook = hooks.ExportModel(every_n_steps=1)
    controller = make_controller(trainer, hooks=[hook], model_dir=tmp_path)
    controller.train(4)
    trainer.global_step.assign(2)
    controller.train(3)
    assert _names(tmp_path) == ["1.keras", "2.keras", "3.keras"]


def test_exported_model_contains_weight_changes_made_by_hooks_after_the_last_evaluation(
    make_keras_trainer, make_controller, tmp_path
):
    def change(hook, logs):
        hook.trainer.model.set_weights([np.float32([[7.0]])])

    listed = [hooks.ExportModel(every_n_steps=2), hooks.LambdaHook(after_eval=change)]
    controller = make_controller(make_keras_trainer(), hooks=listed, model_dir=tmp_path)
    controller.train_and_evaluate(4)
    assert _names(tmp_path) == ["2.keras", "4.keras"]
    exported = keras.models.load_model(tmp_path / "export/4.keras")
    assert exported.get_weights()[0].item() == 7.0


def test_failed_run_exports_no_model(make_keras_trainer, make_controller, tmp_path):
    def fail(hook):
        raise ArithmeticError

    listed = [hooks.ExportModel(), hooks.LambdaHook(after_step=fail, every_n_steps=2)]
    with pytest.raises(ArithmeticError):
        make_controller(make_keras_trainer(), hooks=listed, model_dir=tmp_path).train(5)
    assert not (tmp_path / "export").exists()


def test_saved_model_exported_from_two_replicas_predicts_like_the_trained_model(
    make_keras_trainer, make_controller, two_replicas, tmp_path
):
    trainer = make_keras_trainer(strategy=two_replicas)
    hook = hooks.ExportModel(every_n_steps=2, format="tf_saved_model")
    make_controller(trainer, hooks=[hook], strategy=two_replicas, model_dir=tmp_path).train(3)
    loaded = tf.saved_model.load(
        str(tmp_path / "export/3")
    )  # The functions of a loaded model don't keep the model alive.
    rounding.assert_close(loaded.serve(INPUTS), trainer.model(INPUTS), roundings=4)


def test_export_contains_the_averaged_weights_of_an_ema_optimizer(
    make_keras_trainer, make_controller, tmp_path
):
    trainer = make_keras_trainer(
        lambda: optimization.ExponentialMovingAverage(keras.optimizers.SGD(0.1), 0.5)
    )
    trainer.optimizer.shadow_copy(trainer.model)
    make_controller(trainer, hooks=[hooks.ExportModel()], model_dir=tmp_path).train(3)
    trained = trainer.model.get_weights()[0].item()
    trainer.optimizer.swap_weights()
    exported = keras.models.load_model(tmp_path / "export/3.keras").get_weights()[0].item()
    assert exported == trainer.model.get_weights()[0].item() != trained


class Lookup(keras.Model):
    """A model that looks up a row of a table, which is not built before its first call."""

    def __init__(self):
        super().__init__()
        self.table = keras.layers.Embedding(300, 1)

    def call(self, ids, factor):
        return tf.cast(factor, self.compute_dtype) * self.table(ids)


def test_saved_model_of_a_mixed_precision_model_takes_the_dtypes_of_its_real_inputs(
    points_task, make_task_trainer, make_controller, tmp_path
):
    class LookupTask(points_task):
        def build_model(self):
            return Lookup()

        def build_inputs(self, params, input_context=None):
            ids, y = tf.range(292, 300), tf.zeros([8, 1])
            data = tf.data.Dataset.from_tensors(((ids, tf.ones([8, 1])), y))
            return data.repeat() if params.is_training else data

        def inference_step(self, inputs, model):
            return model(*inputs, training=False)

        def train_step(self, inputs, model, optimizer, metrics=None):
            (ids, factor), y = inputs
            with tf.GradientTape() as tape:
                loss = self.build_losses(y, model(ids, factor, training=True))
            weights = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return {self.loss: loss}

    trainer = make_task_trainer(LookupTask, runtime={"mixed_precision_dtype": "bfloat16"})
    hook = hooks.ExportModel(format="tf_saved_model")
    make_controller(trainer, hooks=[hook], evaluator=None, model_dir=tmp_path).train(1)
    loaded = tf.saved_model.load(str(tmp_path / "export/1"))
    ids, factor = tf.constant([257, 299]), tf.constant([[1.0], [2.0]])
    rounding.assert_close(loaded.serve(ids, factor), trainer.model(ids, factor), roundings=4)


def test_recovery_removes_the_exports_of_the_steps_that_training_repeats(
    experiment, make_task, tmp_path
):
    outputs, seen = [], []

    def spoil_second_report(output):
        outputs.append(output)
        if len(outputs) == 2:
            output["training_loss"] = math.nan

    def note(hook):
        seen.append((hook.controller.step, [name.split(".")[0] for name in _names(tmp_path)]))

    (tmp_path / "export").mkdir()
    (tmp_path / "export/9.keras").touch()  # An export of an earlier start.
    params = experiment(trainer={"train_steps": 8, "recovery_max_trials": 1})
    train_lib.run_experiment(
        None,
        make_task(params),
        "train",
        params,
        str(tmp_path),
        hooks=[
            hooks.ExportModel(every_n_steps=1),
            hooks.LambdaHook(after_step=note, after_restore=note),
        ],
        train_actions=[spoil_second_report],
    )
    # Training might end instead of repeating the steps, so their exports stay until the next one.
    restored = seen.index((4, [*"123456789"]))
    assert seen[restored + 2] == (5, [*"123459"])


def test_weights_that_are_not_finite_are_exported_only_at_the_end_of_training(
    make_keras_trainer, make_controller, log_lines, tmp_path
):
    trainer = make_keras_trainer()
    trainer.model.set_weights([np.float32([[np.nan]])])
    listed = [hooks.ExportModel(every_n_steps=2)]
    make_controller(trainer, hooks=listed, model_dir=tmp_path).train(5)
    assert _names(tmp_path) == ["5.keras"]
    assert "The model of step 2 is not exported: a weight is not finite." in log_lines


@pytest.mark.slow
@pytest.mark.parametrize(("format", "name"), [("keras", "3.keras"), ("tf_saved_model", "3")])
def test_exported_model_loaded_in_a_new_process_predicts_like_the_trained_model(
    make_keras_trainer, make_controller, tmp_path, format, name
):
    trainer = make_keras_trainer()
    hook = hooks.ExportModel(format=format)
    make_controller(trainer, hooks=[hook], model_dir=tmp_path).train(3)
    out = str(tmp_path / "outputs.npy")
    path = str(tmp_path / "export" / name)
    subprocess.run([sys.executable, "-c", LOAD_AND_PREDICT, path, format, out], check=True)
    rounding.assert_close(np.load(out), trainer.model(INPUTS), roundings=4)
