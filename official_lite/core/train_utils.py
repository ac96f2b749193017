"""The utilities of training scripts under their Model Garden names.

The names are imported on first use, so that parsing a config does not wait for TensorFlow.
"""

from official_lite.common import plugins

__getattr__, __all__ = plugins.attach_stub(__name__, __file__)
