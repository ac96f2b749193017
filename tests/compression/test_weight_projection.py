import keras
import numpy as np

from official_lite.compression import configs, kernels, pruning
from official_lite.modeling.optimization import ema_optimizer, optimizer_factory


def test_averages_are_projected_with_the_weights() -> None:
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8)])
    average = ema_optimizer.ExponentialMovingAverage(keras.optimizers.SGD(0.1))
    optimizer_factory.prepare_optimizer(average, model)
    config = configs.PruningConfig(schedule="constant", final_sparsity=0.75)
    found = kernels.find_kernels(model, [], [], block="pruning")
    projection = pruning.MagnitudePruning(config, found)
    assert projection.update(0, average) == {"sparsity": 0.75}
    kernel, of_kernel = model.layers[0].kernel.numpy(), average.averages[0].numpy()
    np.testing.assert_array_equal(kernel, of_kernel)
    assert np.mean(of_kernel == 0) == 0.75
