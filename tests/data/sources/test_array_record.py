import pytest

from official_lite.common import errors
from official_lite.data.sources import registry
from tests import row_files


def test_records_have_no_columns(tmp_path):
    path = row_files.write("array_record", tmp_path, num_files=1).replace("*", "0")
    source = registry.open_source("array_record", [path])
    assert source.read(0)["record"].tolist() == [str(number).encode() for number in range(1000)]
    with pytest.raises(errors.ConfigValueError, match="has none"):
        registry.open_source("array_record", [path], ["x"])
