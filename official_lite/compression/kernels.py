"""Selection of the kernels of a model that pruning and clustering change."""

import dataclasses
import re
from collections.abc import Iterator, Sequence

import keras

from official_lite.common import errors, suggestions

__all__ = ["Kernel", "find_kernels"]

_NAMES = ("kernel", "pointwise_kernel", "recurrent_kernel")

# Few weights with a large effect each.
_DEPTHWISE = (keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D)

_TRANSPOSED = (
    keras.layers.Conv1DTranspose,
    keras.layers.Conv2DTranspose,
    keras.layers.Conv3DTranspose,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kernel:
    """The kernel of a layer.

    Attributes:
        position: The number of the kernel in its model, which is the same in each process. The
            names that Keras gives to layers may differ.
        layer: The layer.
        variable: The kernel.
    """

    position: int
    layer: keras.Layer
    variable: keras.Variable

    @property
    def layer_path(self) -> str:
        """The path of the layer, which patterns are searched for in."""
        return str(self.variable.path).rpartition("/")[0]

    @property
    def input_axis(self) -> int:
        """The axis over whose elements the layer sums, the last one if there are several."""
        if isinstance(self.layer, keras.layers.EinsumDense):
            operands, _, outputs = self.layer.equation.partition("->")
            of_kernel = operands.split(",")[1].strip()
            return max(axis for axis, label in enumerate(of_kernel) if label not in outputs)
        rank = len(self.variable.shape)
        return rank - 1 if isinstance(self.layer, _TRANSPOSED) else rank - 2


def find_kernels(
    model: keras.Model, include: Sequence[str], exclude: Sequence[str], *, block: str
) -> list[Kernel]:
    """Return the trainable kernels of the layers that the patterns select.

    Args:
        model: A built model.
        include: Regular expressions, searched for in the path of a layer; empty for all layers.
        exclude: The same for layers that are left out.
        block: The path of the config with the two lists, for error messages.

    Raises:
        errors.ConfigValueError: A pattern matches no layer, or no kernel is left.
    """
    kernels = list(_kernels(model))
    paths = [kernel.layer_path for kernel in kernels]
    for name, patterns in {"include": include, "exclude": exclude}.items():
        for pattern in patterns:
            if not any(re.search(pattern, path) for path in paths):
                raise errors.ConfigValueError(
                    f"`{block}.{name}` has {pattern!r}, which matches no layer with a trainable "
                    f"kernel. {suggestions.did_you_mean(pattern, paths)}"
                )
    found = [
        kernel
        for kernel in kernels
        if (not include or _matches(include, kernel)) and not _matches(exclude, kernel)
    ]
    if not found:
        raise errors.ConfigValueError(
            f"`{block}` selects no kernel of the model {model.name!r}. Layers with a trainable "
            f"kernel: {', '.join(paths) or 'none'}."
        )
    return found


def _kernels(model: keras.Model) -> Iterator[Kernel]:
    known: set[int] = set()
    for layer in model._flatten_layers():
        if isinstance(layer, _DEPTHWISE):
            continue
        for variable in layer._trainable_variables:
            is_kernel = variable.name in _NAMES and len(variable.shape) > 1
            if is_kernel and variable.trainable and layer.trainable and id(variable) not in known:
                known.add(id(variable))
                yield Kernel(position=len(known), layer=layer, variable=variable)


def _matches(patterns: Sequence[str], kernel: Kernel) -> bool:
    return any(re.search(pattern, kernel.layer_path) for pattern in patterns)
