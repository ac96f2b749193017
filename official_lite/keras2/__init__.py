"""Base classes with the extension points of Keras 2, for code ported from the Model Garden.

A port replaces the base classes of layers, models and optimizers by their counterparts here,
because their subclasses may rely on what Keras 3 does not have. Importing this package also makes
TensorFlow functions accept symbolic tensors, and gives Keras variables the attributes of TensorFlow
variables. New code should use Keras' own classes. See docs/porting.md.
"""

from official_lite.keras2 import backend as backend, interop as interop
from official_lite.keras2.layers import (
    Conv2D as Conv2D,
    Conv3D as Conv3D,
    DepthwiseConv2D as DepthwiseConv2D,
    EinsumDense as EinsumDense,
    Keras2Habits as Keras2Habits,
    Layer as Layer,
    MultiHeadAttention as MultiHeadAttention,
    SeparableConv2D as SeparableConv2D,
    Softmax as Softmax,
)
from official_lite.keras2.losses import (
    BinaryIoU as BinaryIoU,
    IoU as IoU,
    Loss as Loss,
    LossFunctionWrapper as LossFunctionWrapper,
    MeanIoU as MeanIoU,
    OneHotIoU as OneHotIoU,
    OneHotMeanIoU as OneHotMeanIoU,
    add_loss as add_loss,
    add_metric as add_metric,
)
from official_lite.keras2.optimizers import (
    Adam as Adam,
    Optimizer as Optimizer,
    UpdateStep as UpdateStep,
)
from official_lite.keras2.saving import Checkpoint as Checkpoint

interop.accept_symbolic_tensors()
interop.have_attributes_of_tensorflow()
