from official_lite.data.sources import registry


def test_parts_are_grouped_up_to_the_size_of_a_chunk():
    half = registry.CHUNK_BYTES // 2
    groups = registry.group_parts([half, half, 3 * half, 1, 1, 2 * half, 5])
    assert groups == [range(2), range(2, 3), range(3, 6), range(6, 7)]
    assert registry.group_parts([]) == []


def test_a_chunk_of_rows_has_at_least_one_row_and_not_too_many():
    assert registry.rows_per_chunk(1 << 40, 1000) == 1
    assert registry.rows_per_chunk(1000, 1000) == registry.rows_per_chunk(1, 1 << 40) == 1 << 16
