"""Experiments on TensorFlow and Keras 3: a registry, a loop, and runs that can be repeated.

The shortest complete use::

    python train.py --experiment=vision/digits_cnn --mode=train_and_eval --model_dir=/tmp/digits

and of what it leaves::

    run = official_lite.load_run("/tmp/digits")
    scores = run.model(images)
"""

from official_lite.common import plugins

__version__ = "0.1.0"

# Import `load_run` only when it is used, because it imports TensorFlow.
__getattr__, __all__ = plugins.attach_stub(__name__, __file__)
__all__ += ["__version__"]
