"""A cell: nodes that add up operations on earlier nodes, all of which are to be chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from official_lite.nas import choices, input_choice

__all__ = ["Cell"]


class Cell:
    """The space of DARTS and ENAS: nodes in a row, each the sum of operations on nodes before it.

    It puts layers into a functional model, and is none itself, so that the model that was found has
    nothing but the layers of Keras. Cells with one label are decided alike, each with its own
    weights::

        cell = nas.Cell({"conv3": ..., "skip": ...}, num_nodes=4, label="normal")
        x = cell([before_last, last])

    Args:
        candidates: Operations by name, as functions that create them; all keep the shape.
        num_nodes: Nodes beside the inputs.
        num_ops_per_node: Operations that a node adds up.
        num_predecessors: Inputs of the cell.
        merge: What the cell gives: `concat` of all nodes along the last axis, or `last`, the last
            node.
        label: Begins the labels of its choices: `<label>/op_<node>_<number>` and `/input_…`.
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
        """The output for as many inputs as there are predecessors."""
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
