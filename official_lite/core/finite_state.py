"""Whether all weights and all state of the optimizer are finite."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from official_lite.modeling import distributed_gradients, embedding_lookups
from official_lite.orbit.hooks import batch_norm_statistics

__all__ = ["FiniteState"]

# Large tables are passed over at most once in so many steps that each has this many numbers of
# them to bear: it is less than what an update reads and writes anyway.
_NUMBERS_A_STEP = 50_000

_ROWS_AT_ONCE = 2**15


class FiniteState:
    """Looks through the variables of a trainer, in one compiled pass over them.

    The loss of a step says nothing of the update that follows it: a gradient may be bad though the
    loss was not.

    Tables of which a step updates some rows may be so large that a pass takes as long as hundreds
    of steps. They are looked at less often; a bad row shows in the loss when it is looked up.

    Args:
        trainer: Its `model`, `optimizer` and `global_step` are looked at.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._all_but_tables: _Search | None = None
        self._tables: _Search | None = None
        self._steps_between = 0
        self._last_look: int | None = None

    def bad_variables(self) -> list[str]:
        """The paths of variables that hold infinities or NaN."""
        if self._all_but_tables is None or self._tables is None:
            self._all_but_tables, self._tables = self._build()
        bad = self._all_but_tables.bad_variables()
        step = int(self._trainer.global_step.numpy())
        if bad or not self._is_time_for_tables(step):
            return bad
        bad = self._tables.bad_variables()
        # The step that did it is searched for one by one.
        self._last_look = None if bad else step
        return bad

    def _is_time_for_tables(self, step: int) -> bool:
        last = self._last_look
        return last is None or not last <= step < last + self._steps_between

    def _build(self) -> tuple["_Search", "_Search"]:
        optimizer = self._trainer.optimizer
        found = [*self._trainer.model.variables, *getattr(optimizer, "variables", ())]
        found = [v for v in found if keras.backend.is_float_dtype(v.dtype)]
        tables: list[Any] = []
        if distributed_gradients.updates_rows(optimizer):
            tables = [v for v in found if len(v.shape) == 2 and embedding_lookups.is_large(v)]
        are_tables = {id(table) for table in tables}
        others = [v for v in found if id(v) not in are_tables]
        self._steps_between = sum(embedding_lookups.size(v) for v in tables) // _NUMBERS_A_STEP
        return _Search(others, _is_finite), _Search(tables, _rows_are_finite)


class _Search:
    """Looks for bad ones among variables, on all replicas of this host."""

    def __init__(
        self, variables: Sequence[Any], is_finite: Callable[[tf.Variable], tf.Tensor]
    ) -> None:
        self._names: list[str] = []
        values = []
        for variable in variables:
            for value in batch_norm_statistics.local_values(variable):
                self._names.append(str(getattr(variable, "path", variable.name)))
                values.append(value)

        @tf.function(autograph=False)
        def are_finite() -> tf.Tensor:
            flags = [is_finite(value) for value in values]
            return tf.stack(flags) if flags else tf.constant([True])

        self._are_finite = are_finite.get_concrete_function()

    def bad_variables(self) -> list[str]:
        flags = self._are_finite().numpy()
        if flags.all():
            return []
        return [name for name, flag in zip(self._names, flags, strict=True) if not flag]


def _is_finite(variable: tf.Variable) -> tf.Tensor:
    return tf.reduce_all(tf.math.is_finite(variable))


def _rows_are_finite(table: tf.Variable) -> tf.Tensor:
    """Some rows after others: to read it as a whole would be to copy it."""
    num_rows = table.shape[0]

    def look(first: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        rows = tf.range(first, tf.minimum(first + _ROWS_AT_ONCE, num_rows))
        are_finite = tf.reduce_all(tf.math.is_finite(table.sparse_read(rows)))
        return first + _ROWS_AT_ONCE, are_finite

    def goes_on(first: tf.Tensor, are_finite: tf.Tensor) -> tf.Tensor:
        return (first < num_rows) & are_finite

    _, are_finite = tf.while_loop(
        goes_on, look, (tf.constant(0), tf.constant(True)), parallel_iterations=1
    )
    result: tf.Tensor = are_finite
    return result
