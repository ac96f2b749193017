import pyarrow as pa
import pytest
from pyarrow import feather

from official_lite.data.sources import registry


def _write_stream(table, path):
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=10)


@pytest.mark.parametrize("write", [feather.write_feather, _write_stream])
def test_streams_and_compressed_files_are_read(tmp_path, write):
    path = str(tmp_path / "table.arrow")
    write(pa.table({"x": range(100), "y": [[0.5, 1.5]] * 100}), path)
    source = registry.open_source("arrow", [path])
    assert source.num_rows == 100
    assert source.read(0)["x"].tolist() == list(range(100))
    assert source.sample(0, 3)["y"].tolist() == [[0.5, 1.5]] * 3
