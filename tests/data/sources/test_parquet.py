import pyarrow as pa
import pyarrow.parquet as pq

from official_lite.data.sources import registry, source


def test_small_row_groups_are_read_together(tmp_path, monkeypatch):
    path = str(tmp_path / "table.parquet")
    pq.write_table(pa.table({"x": range(1000)}), path, row_group_size=10, compression="none")
    assert registry.open_source("parquet", [path]).chunk_rows.tolist() == [1000]
    monkeypatch.setattr(source, "CHUNK_BYTES", 1 << 11)
    chunks = registry._open.__wrapped__("parquet", (path,), (), ()).chunk_rows
    assert len(chunks) > 1
    assert chunks.sum() == 1000


def test_the_range_of_integers_is_that_of_all_row_groups(tmp_path):
    path = str(tmp_path / "table.parquet")
    pq.write_table(pa.table({"x": range(1000), "y": [0.5] * 1000}), path, row_group_size=10)
    opened = registry.open_source("parquet", [path])
    assert opened.integer_range("x") == (0, 999)
    assert len(opened.sample(0, 5)["x"]) == 5
    pq.write_table(pa.table({"x": range(1000)}), path, write_statistics=False)
    assert registry.open_source("parquet", [path]).integer_range("x") is None
