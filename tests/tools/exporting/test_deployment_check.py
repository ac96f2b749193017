import keras
import numpy as np
import pytest

from official_lite.tools.exporting import deployment_check, model_inputs, run_model


def test_exported_model_is_evaluated_as_the_model_is(read_run, trained) -> None:
    with run_model.built(read_run(trained).params) as (ctx, _):
        run_model.load_weights(ctx, run_model.find_checkpoint(trained))
        model, inputs = ctx.require("model"), model_inputs.real_inputs(ctx)
        own = deployment_check.measure_metrics(ctx, inputs)
        outputs = model_outputs(model)
        same = deployment_check.measure_metrics(ctx, inputs, outputs)
        other = deployment_check.measure_metrics(
            ctx, inputs, lambda given: [0 * each for each in outputs(given)]
        )
    assert same == pytest.approx(own, abs=1e-6)
    # The cross-entropy of equal logits for the three classes.
    assert other["validation_loss"] == pytest.approx(np.log(3), abs=1e-5)
    assert own["validation_loss"] != other["validation_loss"]


def test_latency_is_that_of_one_example() -> None:
    sizes = []
    inputs = model_inputs.ModelInputs(args=[np.zeros((8, 3), np.float32)], names=["x"])

    def call(given):
        sizes.append(given.arrays()["x"].shape)
        return []

    assert deployment_check.measure_latency(call, inputs) > 0
    assert set(sizes) == {(1, 3)}


def model_outputs(model):
    """The outputs in the order in which exported models return them."""
    call = type(model).call

    def outputs(given):
        result = call(model, *given.args, training=False)
        return [np.asarray(each) for each in keras.tree.flatten(result)]

    return outputs
