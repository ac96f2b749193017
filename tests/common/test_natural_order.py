"""Names with numbers are sorted as a reader would sort them."""

from official_lite.common import natural_order


def test_numbers_count_by_their_value() -> None:
    names = ["dense_10/bias", "dense/bias", "dense_9/kernel", "dense_9/bias"]
    assert sorted(names, key=natural_order.sort_key) == [
        "dense/bias",
        "dense_9/bias",
        "dense_9/kernel",
        "dense_10/bias",
    ]
