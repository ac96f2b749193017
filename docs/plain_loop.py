"""A task of the framework in a loop of your own: no trainer, no controller, no files.

For research that no hook or override fits, or for a look at a number in a notebook. The task does
not notice: what it needs is a model, an optimizer and batches.

PYTHONPATH=. python docs/plain_loop.py
"""

import keras
import tensorflow as tf

from experiments.vision.digits import configs, task


def train(steps: int) -> float:
    """Trains for `steps` steps; returns the accuracy on the validation data."""
    keras.utils.set_random_seed(0)
    params = configs.digits_mlp()
    digits = task.DigitsTask(params.task)
    model = digits.build_model()
    optimizer = digits.create_optimizer(params.trainer.optimizer_config)
    # An optimizer that was built on some variables refuses the others, so: on all, before tracing.
    optimizer.build(model.trainable_variables)

    @tf.function
    def train_step(batch):
        return digits.train_step(batch, model, optimizer)

    for batch in digits.build_inputs(params.task.train_data).take(steps):
        train_step(batch)

    metrics = digits.build_metrics(training=False)
    for batch in digits.build_inputs(params.task.validation_data):
        digits.validation_step(batch, model, metrics)
    return float(metrics[0].result())


if __name__ == "__main__":
    print(f"accuracy {train(300):.3f}")
