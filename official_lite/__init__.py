"""Experiments on TensorFlow and Keras 3: a registry, a loop, and runs that can be repeated.

The shortest complete use::

    python train.py --experiment=vision/digits_cnn --mode=train_and_eval --model_dir=/tmp/digits
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
