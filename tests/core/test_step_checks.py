"""Tests that probable mistakes in a step log a warning, and that correct steps do not."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import orbit
from official_lite.common import error_report, errors
from official_lite.core import base_task, base_trainer, input_reader, trainer_factory
from official_lite.orbit.hooks import monitors
from tests.line_experiment import LineTask


class Flat(LineTask):
    """A task with labels of shape (batch,) and outputs of shape (batch, 1)."""

    def build_inputs(self, params, input_context=None):
        return super().build_inputs(params, input_context).map(lambda x, y: (x, y[:, 0]))


class Pairwise(Flat):
    """A task whose loss compares all pairs of examples on purpose."""

    def build_losses(self, labels, model_outputs, aux_losses=None):
        differences = model_outputs - tf.transpose(model_outputs)
        return tf.reduce_mean(tf.square(differences - (labels[:, None] - labels)))


@pytest.mark.parametrize("task_cls", [Flat, Pairwise])
def test_loss_that_broadcasts_labels_against_outputs_logs_one_warning(
    experiment, make_trainer, caplog, task_cls
) -> None:
    trainer = make_trainer(experiment(), task_cls=task_cls)
    assert trainer.train(tf.constant(1))["training_loss"] > 0
    assert trainer.evaluate(tf.constant(-1))["validation_loss"] > 0
    (told,) = _warnings(caplog, "pairs every label")
    assert "labels[:, tf.newaxis]" in told


def test_labels_with_the_same_shape_as_the_outputs_log_no_warning(
    experiment, make_trainer, caplog
) -> None:
    make_trainer(experiment()).train(tf.constant(1))
    assert not _warnings(caplog, "pairs every label")


def test_error_for_a_loss_that_mixes_two_precisions_says_how_to_unify_them(
    experiment, make_trainer
) -> None:
    class Mixed(LineTask):
        def build_losses(self, labels, model_outputs, aux_losses=None):
            return tf.reduce_mean(tf.cast(model_outputs, tf.float16) - labels)

    with pytest.raises(TypeError, match=r"float32 .* float16 .*`dtype='float32'`") as caught:
        make_trainer(experiment(), task_cls=Mixed).train(tf.constant(1))
    assert "test_step_checks.py" in error_report.summary(caught.value)


class Gaussian(LineTask):
    """A task whose loss clips a scale, not a probability, and takes its logarithm."""

    def build_model(self):
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])

    def build_losses(self, labels, model_outputs, aux_losses=None):
        scale = tf.clip_by_value(tf.abs(model_outputs[:, 1:]), 1e-3, 1e3)
        error = (labels - model_outputs[:, :1]) / scale
        return tf.reduce_mean(tf.math.log(scale) + tf.square(error) / 2)

    def build_metrics(self, training=True):
        return []


def _softmax_after_the_last_layer() -> keras.Model:
    inputs = keras.Input((2,))
    return keras.Model(inputs, keras.ops.softmax(keras.layers.Dense(4)(inputs)))


@pytest.mark.parametrize(
    ("model", "is_told"),
    [
        (lambda: keras.Sequential([keras.Input((2,)), keras.layers.Dense(4)]), True),
        (_softmax_after_the_last_layer, False),
    ],
)
def test_loss_for_probabilities_that_receives_logits_logs_a_warning(caplog, model, is_told) -> None:
    compiled = model()
    compiled.compile(loss="sparse_categorical_crossentropy")
    Classes(None).validation_step((tf.ones((4, 2)), tf.range(4)), compiled)
    assert len(_warnings(caplog, "takes probabilities")) == is_told


def test_loss_with_the_logarithm_of_a_scale_does_not_warn_about_probabilities(
    experiment, make_trainer, caplog
) -> None:
    make_trainer(experiment(), task_cls=Gaussian).train(tf.constant(1))
    assert not _warnings(caplog, "probabilities")


class Weightless(LineTask):
    """A baseline task whose model has no weights and returns the first feature."""

    def build_model(self):
        class First(keras.Model):
            def call(self, x):
                return x[:, :1]

        return First()


def test_model_without_weights_can_be_evaluated(experiment, make_trainer) -> None:
    trainer = make_trainer(experiment(), task_cls=Weightless, train=False)
    assert trainer.evaluate(tf.constant(-1))["validation_loss"] > 0


def _warnings(caplog, text: str) -> list[str]:
    return [record.message for record in caplog.records if text in record.message]


class Forgetful(LineTask):
    """A task whose steps omit the metrics and, by default, `training=True`."""

    training: bool | None = None

    def train_step(self, inputs, model, optimizer, metrics=None):
        x, y = inputs
        with tf.GradientTape() as tape:
            outputs = model(x) if self.training is None else model(x, training=self.training)
            loss = self.build_losses(y, outputs, model.losses)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {self.loss: loss}

    def validation_step(self, inputs, model, metrics=None):
        return {self.loss: self.build_losses(inputs[1], model(inputs[0], training=False))}


class Mindful(Forgetful):
    training = True


class Stateless(Mindful):
    """A task whose steps call the model with other values of its weights."""

    def train_step(self, inputs, model, optimizer, metrics=None):
        x, y = inputs
        weights = [tf.identity(weight) for weight in model.trainable_variables]
        with tf.GradientTape() as tape:
            tape.watch(weights)
            outputs, _ = model.stateless_call(
                weights, model.non_trainable_variables, x, training=self.training
            )
            loss = self.build_losses(y, outputs)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), variables, strict=True))
        return {self.loss: loss}


class ForgetfulStateless(Stateless):
    training = False


@pytest.mark.parametrize(
    ("task_cls", "rate", "is_told"),
    [
        (Forgetful, 0.5, True),
        (Forgetful, 0.0, False),
        (Mindful, 0.5, False),
        (Stateless, 0.5, False),
        (ForgetfulStateless, 0.5, True),
    ],
)
def test_step_that_never_calls_a_model_with_dropout_in_training_mode_logs_a_warning(
    experiment, make_trainer, caplog, task_cls, rate, is_told
) -> None:
    trainer = make_trainer(experiment(task={"dropout_rate": rate}), task_cls=task_cls)
    trainer.train(tf.constant(2))
    trainer.execution = "eager"
    trainer.train(tf.constant(2))
    assert len(_warnings(caplog, "training=True")) == is_told


class TrainsOnly(LineTask):
    def validation_step(self, inputs, model, metrics=None):
        raise NotImplementedError


@pytest.mark.parametrize("execution", ["eager", "graph"])
def test_task_without_a_validation_step_can_be_trained_but_not_evaluated(
    experiment, make_trainer, execution
) -> None:
    trainer = make_trainer(experiment(), task_cls=TrainsOnly)
    trainer.execution = execution
    assert trainer.train(tf.constant(1))["training_loss"] > 0
    with pytest.raises(errors.ConfigError, match=r"TrainsOnly\.validation_step.*--mode=train`"):
        trainer.evaluate(tf.constant(1))


class Unfinished(LineTask):
    def build_losses(self, labels, model_outputs, aux_losses=None):
        return np.mean(model_outputs)


def test_not_implemented_error_raised_in_a_loss_is_not_taken_for_a_missing_step(
    experiment, make_trainer
) -> None:
    trainer = make_trainer(experiment(), task_cls=Unfinished)
    with pytest.raises(NotImplementedError, match="numpy") as caught:
        trainer.train(tf.constant(1))
    told = error_report.report(caught.value, "how")
    assert "in `build_losses`)" in told
    assert "The inputs of `Unfinished.train_step`: ('float32 (None, 2)', " in told


class Fixed(LineTask):
    """A task with an attribute for each value that one of its methods returns."""

    loss_value = optimizers = model = metric = None

    def build_model(self):
        return self.model or super().build_model()

    def build_metrics(self, training=True):
        return self.metric or super().build_metrics(training)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        loss = super().build_losses(labels, model_outputs, aux_losses)
        return loss if self.loss_value is None else self.loss_value

    @classmethod
    def create_optimizer(cls, optimizer_config, runtime_config=None):
        if cls.optimizers:
            return vars(cls)["optimizers"]()
        return super().create_optimizer(optimizer_config, runtime_config)


class Unconstructed(keras.Model):
    def __init__(self):
        self.units = 4


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"loss_value": 0.0}, r"build_losses` \(.*returned 0\.0; expected .*scalar tensor"),
        (
            {"optimizers": lambda: (keras.optimizers.SGD(), keras.optimizers.SGD())},
            r"The optimizer is .*SGD.* one from `Fixed\.create_optimizer`",
        ),
        ({"model": keras.Model}, r"returned the class `Model`; .*: `Model\(…\)`"),
        ({"metric": {"a": 1}}, r"returned a dictionary, .*Return a list of its values"),
        ({"model": Unconstructed()}, r"Unconstructed\.__init__` .*Add `super\(\)\.__init__\(\)`"),
    ],
)
def test_error_for_an_invalid_return_value_names_the_task_method_to_correct(
    experiment, values, told
) -> None:
    params = experiment()
    task = type("Fixed", (Fixed,), values)(params.task)
    with pytest.raises(errors.ConfigTypeError, match=told):
        trainer_factory.create_trainer(params, task, train=True, evaluate=False).train(
            tf.constant(1)
        )


def test_trainer_that_does_not_call_the_constructor_of_its_base_class_is_refused(
    experiment,
) -> None:
    class Mine(base_trainer.Trainer):
        def __init__(self, config, task, model, optimizer, **kwargs):
            self.extra = 1

    params = experiment()
    with pytest.raises(
        errors.ConfigTypeError, match=r"Mine\.__init__` .*super\(\)\.__init__\(config"
    ):
        trainer_factory.create_trainer(
            params, LineTask(params.task), train=True, evaluate=False, trainer_cls=Mine
        )


def test_metric_that_no_step_updates_is_omitted_with_a_warning(
    experiment, make_trainer, caplog
) -> None:
    trainer = make_trainer(experiment(), task_cls=Forgetful)
    assert set(trainer.train(tf.constant(2))) == {"training_loss", "learning_rate"}
    assert set(trainer.evaluate(tf.constant(-1))) == {"validation_loss"}
    trainer.evaluate(tf.constant(-1))
    # One warning is for training and one for evaluation.
    assert len(_warnings(caplog, "`mae`")) == 2


class Classes(base_task.Task):
    def build_inputs(self, params, input_context=None):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("name", "is_told", "is_compiled"),
    [
        ("CategoricalAccuracy", True, False),
        ("CategoricalAccuracy", True, True),
        ("SparseCategoricalAccuracy", False, True),
    ],
)
def test_metric_for_one_hot_labels_that_receives_class_indices_logs_a_warning(
    caplog, name, is_told, is_compiled
) -> None:
    inputs = tf.ones((4, 2)), tf.range(4)
    task, metric = Classes(None), getattr(keras.metrics, name)()
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(4)])
    if is_compiled:
        model.compile(loss=keras.losses.SparseCategoricalCrossentropy(), metrics=[metric])
    for _ in range(2):
        task.validation_step(inputs, model, [] if is_compiled else [metric])
    assert len(_warnings(caplog, "one-hot")) == is_told


def test_warning_that_dropout_is_never_in_training_mode_is_logged_once_on_two_replicas(
    experiment, make_trainer, two_replicas, caplog
) -> None:
    with two_replicas.scope():
        trainer = make_trainer(experiment(task={"dropout_rate": 0.5}), task_cls=Forgetful)
        trainer.train(tf.constant(2))
    assert len(_warnings(caplog, "training=True")) == 1


@pytest.mark.parametrize("block", ["train_data", "validation_data"])
def test_error_for_a_missing_batch_size_names_the_field_and_a_remedy(
    experiment, make_trainer, block
) -> None:
    class Points(LineTask):
        def build_inputs(self, params, input_context=None):
            arrays = (np.ones((8, 1), "float32"), np.ones((8, 1), "float32"))
            return input_reader.from_arrays(arrays, params, input_context)

    params = experiment(task={block: {"global_batch_size": 0}})
    message = f"`task.{block}.global_batch_size` is 0; .* use a mode that does not read"
    with pytest.raises(errors.ConfigValueError, match=message):
        make_trainer(params, task_cls=Points).train(tf.constant(1))


class Probe(orbit.GraphHook):
    """A graph hook that reads the logs of the train step."""

    def call(self, logs):
        self.names = sorted(logs)


@pytest.mark.parametrize(
    ("extra", "hooks", "is_told"),
    [
        ((), [], False),
        (("residual",), [], True),
        (("residual",), [monitors.GradientNorm()], True),
        (("residual",), [Probe()], False),
    ],
    ids=["nothing", "residual", "read by no hook", "read by a hook"],
)
def test_unreported_log_of_a_train_step_is_named_in_one_warning(
    experiment, make_trainer, caplog, extra, hooks, is_told
) -> None:
    class Task(LineTask):
        """A task whose step also returns the values of its metrics."""

        def build_model(self):
            model = super().build_model()
            model.compile(loss="mse", metrics=["mse"])
            return model

        def train_step(self, inputs, model, optimizer, metrics=None):
            logs = super().train_step(inputs, model, optimizer, metrics)
            logs |= {one.name: one.result() for one in metrics}
            logs |= model.get_metrics_result()
            return {**logs, **dict.fromkeys(extra, tf.abs(logs[self.loss]))}

    trainer = make_trainer(experiment(), task_cls=Task)
    trainer.set_graph_hooks(hooks)
    logs = trainer.train(tf.constant(2))
    trainer.execution = "eager"
    trainer.train(tf.constant(2))
    assert "residual" not in logs
    told = _warnings(caplog, "does not report")
    assert len(told) == is_told
    assert all("returned `residual`, which" in one for one in told)


@pytest.mark.parametrize(
    ("options", "instead"),
    [
        ({"gradient_accumulation_steps": 2}, "Set `trainer.grad_accum_steps`"),
        ({"use_ema": True, "ema_overwrite_frequency": 4}, "Set `trainer.optimizer_config.ema`"),
        ({"ema_overwrite_frequency": 4}, ""),
    ],
)
def test_optimizer_option_that_supports_only_one_replica_raises_on_two_replicas(
    experiment, make_trainer, two_replicas, options, instead
) -> None:
    class Task(LineTask):
        @classmethod
        def create_optimizer(cls, *args, **kwargs):
            return keras.optimizers.SGD(0.1, **options)

    make_trainer(experiment(), task_cls=Task).train(tf.constant(1))
    with two_replicas.scope():
        if not instead:
            make_trainer(experiment(), task_cls=Task).train(tf.constant(1))
            return
        with pytest.raises(errors.ConfigValueError, match=instead):
            make_trainer(experiment(), task_cls=Task)
