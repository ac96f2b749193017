import collections

from official_lite.common import plugins


def test_class_of_a_file_is_named_by_its_path(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("class Mine: ...\n")
    mine = plugins.load_module(str(file)).Mine
    assert (plugins.module_of(mine), plugins.name_of(mine)) == (
        str(file),
        f"{file}:Mine",
    )
    assert plugins.name_of(collections.OrderedDict) == "collections.OrderedDict"
