"""A searchable cell: nodes that sum operations on earlier nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from official_lite.nas import choices, input_choice

__all__ = ["Cell"]


class Cell:
    """The search space of DARTS and ENAS: a sequence of nodes that sum operations on earlier nodes.

    The operations and their inputs are choices. A cell is not a layer: it adds layers to a
    functional model, so the final model contains only Keras layers. Cells with the same label share
    their choices but not their weights::

        cell = nas.Cell({"conv3": ..., "skip": ...}, num_nodes=4, label="normal")
        x = cell([before_last, last])

    Args:
        candidates: Operations by name, as functions that create a layer. All operations must keep
            the shape of their input.
        num_nodes: Number of nodes, not counting the inputs of the cell.
        num_ops_per_node: Number of operations that each node sums.
        num_predecessors: Number of inputs of the cell.
        merge: Output of the cell: `concat` concatenates all nodes along the last axis; `last`
            returns the last node.
        label: Prefix of the labels of the cell's choices, which are `<label>/op_<node>_<number>`
            and `<label>/input_<node>_<number>`.
    """

    def __init__(
        self,
        candidates: Mapping[str, Callable[[], keras.layers.Layer]],
        *,
        num_nodes: int,
        num_ops_per_node: int = 2,
        num_predecessors: int = 2,
        merge: str = "concat",
        label: str,
    ) -> None:
        self._candidates = candidates
        self._num_nodes = num_nodes
        self._num_ops = num_ops_per_node
        self._num_predecessors = num_predecessors
        self._merge = merge
        self._label = label

    def __call__(self, inputs: Sequence[Any]) -> Any:
        """Return the output of the cell for a list of `num_predecessors` inputs."""
        states = list(inputs)
        nodes = [self._add_node(number, states) for number in range(self._num_nodes)]
        if self._merge == "last" or len(nodes) == 1:
            return nodes[-1]
        return keras.layers.Concatenate()(nodes)

    def _add_node(self, number: int, states: list[Any]) -> Any:
        results = []
        for op in range(self._num_ops):
            place = f"{number + self._num_predecessors}_{op}"
            source = input_choice.InputChoice(len(states), label=f"{self._label}/input_{place}")
            operation = choices.LayerChoice(self._candidates, label=f"{self._label}/op_{place}")
            results.append(operation(source(states)))
        node = keras.layers.Add()(results) if len(results) > 1 else results[0]
        states.append(node)
        return node
