"""A binary tree with an item at each leaf; items that are taken together are neighbors.

Nodes are numbered as in a heap: the root is 1, the children of n are 2n and 2n + 1, and the leaves
of a tree of depth d are 2**d to 2**(d + 1) - 1.
"""

import numpy as np

__all__ = ["VACANT", "depth_for", "item_vectors", "plant"]

VACANT = -1

_VECTOR_WIDTH = 32


def depth_for(num_items: int) -> int:
    """Return the depth of the smallest tree that has a leaf for each item."""
    return max(1, (num_items - 1).bit_length())


def item_vectors(histories: np.ndarray, num_items: int) -> np.ndarray:
    """Return a vector for each item, such that items taken by the same users are close together.

    The vectors are the main directions of the positive pointwise mutual information of two items.

    Args:
        histories: Items by user, of shape (users, length).
        num_items: The number of items.

    Returns:
        float64 of shape (num_items, width).
    """
    together = np.zeros(num_items * num_items)
    for shift in range(1, histories.shape[1]):
        pairs = histories[:, shift:].astype(np.int64) * num_items + histories[:, :-shift]
        together += np.bincount(pairs.ravel(), minlength=num_items * num_items)
    counts = together.reshape(num_items, num_items)
    counts = counts + counts.T
    alone = counts.sum(axis=1)
    expected = np.maximum(np.outer(alone, alone), 1.0) / max(alone.sum(), 1.0)
    information = np.log(np.maximum(counts / expected, 1.0))
    values, vectors = np.linalg.eigh(information)
    width = min(_VECTOR_WIDTH, num_items)
    return vectors[:, -width:] * np.sqrt(np.maximum(values[-width:], 0.0))


def plant(vectors: np.ndarray) -> np.ndarray:
    """Return the item at each leaf, int32, or `VACANT` for an empty leaf.

    The items are repeatedly split in half along the main direction of their vectors.

    Args:
        vectors: Vectors of shape (num_items, width).
    """
    item_of_leaf = np.full(2 ** depth_for(len(vectors)), VACANT, np.int32)
    _plant_under(np.arange(len(vectors)), vectors, item_of_leaf)
    return item_of_leaf


def _plant_under(items: np.ndarray, vectors: np.ndarray, leaves: np.ndarray) -> None:
    if len(leaves) == 1:
        leaves[: len(items)] = items
        return
    ordered = items[np.argsort(_along_main_direction(vectors[items]), kind="stable")]
    half, middle = (len(items) + 1) // 2, len(leaves) // 2
    _plant_under(ordered[:half], vectors, leaves[:middle])
    _plant_under(ordered[half:], vectors, leaves[middle:])


def _along_main_direction(vectors: np.ndarray) -> np.ndarray:
    if len(vectors) < 2:
        return np.zeros(len(vectors))
    centred = vectors - vectors.mean(axis=0)
    _, directions = np.linalg.eigh(centred.T @ centred)
    return centred @ directions[:, -1]
