"""Neural architecture search: models with choices, and trainers that select the best options.

::

    def build_model(self):  # of a task whose config is a `nas.ArchTaskConfig`
        with nas.fixed_arch(self.task_config.arch):
            inputs = keras.Input((8, 8, 1))
            x = nas.LayerChoice(
                {"conv3": lambda: keras.layers.Conv2D(16, 3, padding="same"),
                 "conv1": lambda: keras.layers.Conv2D(16, 1)},
                label="conv",
            )(inputs)
            ...

    train.py --experiment=nas/digits --set=trainer.name=darts --model_dir=/tmp/search
    train.py --experiment=nas/digits --set=task.arch=/tmp/search --model_dir=/tmp/found

The trainers `darts`, `gumbel`, `proxyless`, `enas` and `spos` search within a single training run
and work with any task. The names of this package are imported on first use.
"""

from official_lite.common import plugins

__getattr__, __all__ = plugins.attach_stub(__name__, __file__)
