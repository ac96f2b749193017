"""Optimizers, learning-rate schedules and moving averages of weights.

::

    config = optimization.OptimizationConfig(
        {
            "optimizer": {"type": "sgd", "sgd": {"momentum": 0.9}},
            "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.1}},
        }
    )
    factory = optimization.OptimizerFactory(config)
    optimizer = factory.build_optimizer(factory.build_learning_rate())

The names of this package are imported on first use, so listing or describing experiments does not
load TensorFlow.
"""

from official_lite.common import plugins

__getattr__, __all__ = plugins.attach_stub(__name__, __file__)
