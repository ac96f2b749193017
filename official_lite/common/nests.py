"""Nests of tensors, in which None stands for a missing part, as in a batch of tf.data."""

from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

# The user's dataset, model and task determine how values are nested. Type checkers can't know this
# structure, so the type accepts any value.
Nest: TypeAlias = Any
"""A tensor, an array, or any nesting of tuples, lists and dicts of them."""


def tensors_in(nest: Nest) -> list[tf.Tensor]:
    """Return the tensors of a nest, and the components of its ragged and sparse tensors."""
    return [x for x in tf.nest.flatten(nest, expand_composites=True) if tf.is_tensor(x)]


def specs_in(element_spec: Nest) -> list[tf.TypeSpec]:
    """Return the specs of an `element_spec`, except those of missing parts."""
    return [spec for spec in tf.nest.flatten(element_spec) if not _is_missing(spec)]


def map_parts(fn: Callable[..., Any], *nests: Nest) -> Nest:
    """Map a function over nests like `tf.nest.map_structure`; a missing part stays None."""
    return tf.nest.map_structure(
        lambda *parts: None if _is_missing(parts[0]) else fn(*parts), *nests
    )


# tf.distribute calls this optional method of a spec to create a batch for a replica without data.
tf.NoneTensorSpec._create_empty_value = lambda self: None


def _is_missing(part: object) -> bool:
    return part is None or isinstance(part, tf.NoneTensorSpec)
