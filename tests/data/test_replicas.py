import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.data import replicas


def test_global_batch_size_is_divided_by_the_number_of_replicas() -> None:
    assert replicas.per_replica_batch_size(6) == 6
    assert replicas.per_replica_batch_size(6, tf.distribute.InputContext(2, 0, 3)) == 2


def test_batch_size_that_cannot_be_divided_among_replicas_is_refused() -> None:
    with pytest.raises(
        errors.ConfigValueError, match=r"5, which .* among 2 replicas.* valid value is 6"
    ):
        replicas.per_replica_batch_size(5, tf.distribute.InputContext(1, 0, 2))
    with pytest.raises(errors.ConfigValueError, match="expected 1 or more"):
        replicas.per_replica_batch_size(0)
