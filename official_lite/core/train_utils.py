"""The utilities of training scripts under their Model Garden names.

The names are imported on first use, so that parsing a config does not wait for TensorFlow.
"""

from official_lite.common import lazy_imports

__getattr__, __all__ = lazy_imports.attach_stub(__name__, __file__)
