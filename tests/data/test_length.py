import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.data import length


@pytest.fixture
def dataset():
    return tf.data.Dataset.from_tensor_slices({"x": [[1.0], [2.0]], "y": [1, 2]})


def test_data_that_repeat_are_refused_and_others_are_not(dataset, two_replicas):
    for good in (dataset, dataset.filter(lambda _: True), [dataset], None):
        length.require_end(good)
    for bad in (
        dataset.repeat(),
        two_replicas.distribute_datasets_from_function(lambda _: dataset.batch(1).repeat()),
    ):
        with pytest.raises(errors.ConfigValueError, match="repeat forever"):
            length.require_end(bad)


def test_elements_stay_as_they_are(dataset):
    filtered = dataset.filter(lambda _: True)
    timed = length.watch_cardinality(lambda: filtered)()
    assert timed.element_spec == filtered.element_spec
    assert [int(e["y"]) for e in timed] == [1, 2]


def test_data_of_known_length_are_not_timed(dataset):
    assert length.watch_cardinality(lambda: dataset)() is dataset
    assert length.watch_cardinality(lambda: 3)() == 3


def test_each_reading_has_its_time(dataset, monkeypatch, caplog):
    monkeypatch.setattr(length, "_BATCHES_BETWEEN_LOOKS", 1)
    monkeypatch.setattr(length, "_WARNING_SECONDS", 0.0)
    timed = length.watch_cardinality(lambda: dataset.filter(lambda _: True))()
    for warnings in (1, 2):
        assert len(list(timed)) == 2
        assert caplog.text.count("without reaching the end") == warnings


def test_too_long_is_an_error(dataset, monkeypatch):
    monkeypatch.setattr(length, "_BATCHES_BETWEEN_LOOKS", 1)
    monkeypatch.setattr(length, "_MAX_SECONDS", 0.0)
    with pytest.raises(tf.errors.OpError, match="without reaching the end"):
        list(length.watch_cardinality(lambda: dataset.filter(lambda _: True))())
