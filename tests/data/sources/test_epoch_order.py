import numpy as np
import pytest

from official_lite.data.sources.reading import EpochOrder

CHUNKS = np.array([5, 1, 9, 3, 3, 2])


def order(**fields):
    return EpochOrder(chunk_rows=CHUNKS, **{"shuffles_chunks": True, "seed": 1, **fields})


def rows_of(order, epoch):
    """Yield the row numbers of each window of an epoch, numbered across all chunks."""
    starts = np.cumsum(CHUNKS) - CHUNKS
    for index in range(order.num_windows(epoch)):
        window = order.window(epoch, index)
        found = np.concatenate([np.arange(CHUNKS[c]) + starts[c] for c in window.chunks])
        found = found if window.rows is None else found[window.rows]
        assert len(found) == window.num_rows
        yield found.tolist()


def flat(windows):
    return [row for window in windows for row in window]


@pytest.mark.parametrize(
    ("num_pipelines", "shuffled_rows"), [(1, 1), (2, 6), (6, 0), (9, 100), (9, 0)]
)
def test_each_row_of_an_epoch_is_read_by_exactly_one_pipeline(num_pipelines, shuffled_rows):
    for epoch in range(3):
        read = []
        for pipeline in range(num_pipelines):
            one = order(num_pipelines=num_pipelines, pipeline=pipeline, shuffled_rows=shuffled_rows)
            own = flat(rows_of(one, epoch))
            assert one.num_rows(epoch) == len(own)
            read += own
        assert sorted(read) == list(range(23))


def test_every_shuffle_window_except_the_last_has_the_minimum_number_of_rows():
    sizes = [len(window) for window in rows_of(order(shuffled_rows=6), 0)]
    assert min(sizes[:-1]) >= 6
    assert len(sizes) > 1


@pytest.mark.parametrize(("num_pipelines", "pipeline"), [(1, 0), (4, 3), (9, 8)])
def test_position_of_a_row_is_given_by_its_epoch_shuffle_window_and_offset(num_pipelines, pipeline):
    one = order(shuffled_rows=4, num_pipelines=num_pipelines, pipeline=pipeline)
    number = 0
    for epoch in range(4):
        for index, window in enumerate(rows_of(one, epoch)):
            for place in range(len(window)):
                assert one.find(number) == (epoch, index, place)
                number += 1


def test_only_equal_seeds_give_the_same_order_of_rows():
    assert list(rows_of(order(shuffled_rows=6), 2)) == list(rows_of(order(shuffled_rows=6), 2))
    assert list(rows_of(order(shuffled_rows=6, seed=2), 2)) != list(
        rows_of(order(shuffled_rows=6), 2)
    )


def test_unshuffled_rows_keep_their_original_order():
    assert flat(rows_of(order(shuffles_chunks=False), 1)) == list(range(23))
