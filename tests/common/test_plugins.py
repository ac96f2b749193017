import collections
import pathlib
import subprocess
import sys

import pytest

from official_lite.common import errors, plugins


class Hook: ...


class LoudHook(Hook): ...


def write(directory, text, name="hooks.py"):
    (directory / name).write_text(text)
    return directory / name


DATA = None
HOOK_FILE = "import collections\nclass MyHook(collections.OrderedDict): pass\nclass Other: pass\n"


def test_registered_plugin_name_is_resolved_to_its_class():
    names = {}
    plugins.register(names, "hooks/loud")(LoudHook)
    assert plugins.resolve("hooks/loud", registry=names, base=Hook) is LoudHook


def test_plugin_registered_as_a_module_and_class_string_is_resolved_to_the_class():
    names = {}
    plugins.register(names, "ordered")("collections:OrderedDict")
    assert plugins.resolve("ordered", registry=names) is collections.OrderedDict


def test_module_and_class_name_are_resolved_to_the_class():
    assert plugins.resolve("collections:OrderedDict", base=dict) is collections.OrderedDict


@pytest.mark.parametrize(
    "spec",
    [
        "collections:OrderedDict.fromkeys",
        "collections:namedtuple.__globals__.clear",
        "collections:_sys.modules.clear",
        "collections:abc.Mapping",
        "collections:_sys",
        "collections:__loader__",
    ],
)
def test_plugin_name_cannot_reach_private_names_or_attributes_of_objects(spec):
    with pytest.raises(errors.ConfigValueError, match="expected a public class or function"):
        plugins.resolve(spec)


def test_resolve_returns_a_class_unchanged():
    assert plugins.resolve(LoudHook, base=Hook) is LoudHook


def test_plugin_file_in_the_workspace_is_loaded_without_changing_sys_path(tmp_path):
    write(tmp_path, HOOK_FILE)
    path_before = list(sys.path)
    for spec in ("{workspace}/hooks.py:MyHook", "hooks.py:MyHook", "{workspace}/hooks.py"):
        found = plugins.resolve(spec, base=dict, workspace=tmp_path)
        assert found.__name__ == "MyHook"
    assert sys.path == path_before
    assert "hooks" not in sys.modules


def test_two_plugin_files_with_the_same_name_do_not_collide(tmp_path):
    found = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, f"class MyHook(dict): origin = {name!r}\n")
        found.append(plugins.resolve(f"{tmp_path}/{name}/hooks.py", base=dict))
    assert [cls.origin for cls in found] == ["a", "b"]


def test_import_error_in_a_plugin_file_is_raised_unchanged(tmp_path):
    write(tmp_path, "import no_such_module_anywhere\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_module_anywhere") as raised:
        plugins.resolve("hooks.py:MyHook", workspace=tmp_path)
    assert raised.traceback[-1].path == tmp_path / "hooks.py"


def test_plugin_file_that_raised_on_import_is_loaded_again_on_the_next_use(tmp_path):
    path = write(tmp_path, "raise ValueError('broken')\n")
    with pytest.raises(ValueError, match="broken"):
        plugins.resolve(f"{path}:MyHook")
    write(tmp_path, "class MyHook: mended = True\n")
    assert plugins.resolve(f"{path}:MyHook").mended


def test_resolve_accepts_a_function_instead_of_a_class():
    assert plugins.resolve("math:sqrt", base=Hook)(4.0) == 2.0


def test_load_module_accepts_a_module_name_or_a_file(tmp_path):
    assert plugins.load_module("collections") is collections
    assert plugins.load_module("a.py", workspace=write(tmp_path, "x = 3\n", "a.py").parent).x == 3


class Patient(Hook):
    def __init__(self, metric, patience=3):
        self.metric, self.patience = metric, patience


NAMES = {"patient": Patient}


def create(entry):
    return plugins.factory(entry, registry=NAMES, base=Hook, kind="hook")()


def test_object_named_in_a_config_entry_is_created_with_its_arguments():
    made = create({"name": "patient", "metric": "loss"})
    assert (made.metric, made.patience) == ("loss", 3)


# Each row: the call, the error that it raises, and the text that the message must contain.
REFUSALS = [
    (lambda: create({"name": "patient", "metrik": "loss"}), errors.UnknownNameError, "`metrik`"),
    (lambda: create("patient"), errors.ConfigTypeError, "'metric'"),
    (lambda: create({"patience": 3}), errors.ConfigTypeError, "{'patience': 3}"),
    (lambda: create(["patient"]), errors.ConfigTypeError, "['patient']"),
    (lambda: create("patiend"), errors.UnknownNameError, "`patient`"),
    (lambda: plugins.resolve("collections.OrderedDict"), LookupError, "`collections:OrderedDict`"),
    (lambda: plugins.resolve("no_such_package.hooks:MyHook"), LookupError, "`no_such_package`"),
    (lambda: plugins.resolve("collections:OrderedDickt"), LookupError, "`OrderedDict`"),
    (lambda: plugins.resolve("nowhere.py:MyHook"), LookupError, "nowhere.py"),
    (
        lambda: plugins.resolve("{workspace}/hooks.py:MyHook"),
        errors.ConfigValueError,
        "`workspace`",
    ),
    (
        lambda: plugins.resolve("collections:OrderedDict", base=Hook),
        errors.ConfigTypeError,
        "Hook`",
    ),
    (lambda: plugins.resolve("sys:path", base=Hook), errors.ConfigTypeError, "Hook`"),
    (
        lambda: plugins.resolve(f"{DATA}/two.py", base=dict),
        errors.ConfigValueError,
        "`One` and `Two`",
    ),
    (lambda: plugins.resolve(f"{DATA}/none.py", base=dict), errors.ConfigValueError, "`dict`"),
    (lambda: add({}, "text", "text"), KeyError, "'text'"),
    (lambda: add({}, "text", "text/more"), plugins.DuplicateNameError, "'text'"),
    (lambda: add({}, "text/more", "text"), plugins.DuplicateNameError, "'text'"),
    (lambda: look_up("vision/digist"), errors.UnknownNameError, "`vision/digits`"),
    (lambda: look_up("vision"), errors.UnknownNameError, "`vision/digits`"),
    (lambda: look_up("vision/digits/more"), errors.UnknownNameError, "'vision/digits/more'"),
    (lambda: look_up(Hook), errors.UnknownNameError, "Hook`"),
    *(
        (lambda name=name: add({}, name), errors.ConfigValueError, repr(name))
        for name in ("", "/a", "a//b", "a/../b", "a\0b", "a\nb", "a\x1b[31m")
    ),
    *(
        (lambda path=path: plugins.require_subdirectory(path, "subdir"), ValueError, "`subdir`")
        for path in ("..", "a/../../x", "a\\..\\x", "/tmp/x", "gs://b/x", "a\0b", "\x1b[2J")
    ),
]


def add(collection: plugins.Collection, *names: str) -> plugins.Collection:
    for name in names:
        plugins.register(collection, name)(lambda name=name: name)
    return collection


def look_up(name):
    return plugins.lookup(add({}, "vision/digits", "text/reviews"), name)


@pytest.mark.parametrize(("act", "error", "named"), REFUSALS)
def test_missing_ambiguous_or_unsafe_plugin_name_raises(act, error, named, files_of_classes):
    with pytest.raises(error) as caught:
        act()
    assert named in str(caught.value)


@pytest.fixture
def files_of_classes(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.DATA", tmp_path)
    write(tmp_path, "class One(dict): pass\nclass Two(dict): pass\n", "two.py")
    write(tmp_path, "x = 1\n", "none.py")


@pytest.mark.parametrize("path", ["best", "a/b", "", "with space", "größe", "a..b", "..."])
def test_require_subdirectory_accepts_relative_paths_without_parent_references(path: str) -> None:
    plugins.require_subdirectory(path, "subdir")


def test_only_strings_that_refer_to_python_code_are_recognized_as_code() -> None:
    code = ("os:abort", "a.b:C.d", "hooks.py", "{workspace}/h.py:Hook")
    other = ("early_stopping", "a/b", "host:80", "gs://bucket/x", "note: x")
    assert all(map(plugins.names_code, code))
    assert not any(map(plugins.names_code, other))


def test_config_cannot_set_an_argument_that_the_caller_passes_by_position():
    factory = plugins.factory({"name": "patient"}, num_args=1, registry=NAMES)
    assert factory("loss").metric == "loss"
    with pytest.raises(errors.ConfigError, match="no argument `metric`"):
        plugins.factory({"name": "patient", "metric": "loss"}, num_args=1, registry=NAMES)


def test_registered_name_may_contain_group_names_separated_by_slashes():
    collection = add({}, "vision/digits/small", "vision/digits/large", "text")
    assert plugins.lookup(collection, "vision/digits/large")() == "vision/digits/large"
    assert plugins.names(collection) == ["text", "vision/digits/large", "vision/digits/small"]


def test_reloaded_module_replaces_the_class_that_it_registered():
    collection: plugins.Collection = {}

    def load(version: int) -> type:
        cls = type("Thing", (), {"__module__": "some.module", "version": version})
        return plugins.register(collection, "thing")(cls)

    load(1)
    load(2)
    assert plugins.lookup(collection, "thing").version == 2


def test_name_of_a_class_from_a_file_contains_the_path_of_the_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("class Mine: ...\n")
    mine = plugins.load_module(str(file)).Mine
    assert (plugins.module_of(mine), plugins.name_of(mine)) == (
        str(file),
        f"{file}:Mine",
    )
    assert plugins.name_of(collections.OrderedDict) == "collections.OrderedDict"


@pytest.fixture
def install(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that puts a one-module package with pip's metadata on `sys.path`."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(name: str, source: str, group: str) -> None:
        (tmp_path / f"{name}.py").write_text(source)
        notes = tmp_path / f"{name}-1.5.dist-info"
        notes.mkdir()
        (notes / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        (notes / "entry_points.txt").write_text(f"[{group}]\nmine = {name}\n")

    yield install
    for module in [name for name in sys.modules if name.startswith("pluggable_")]:
        del sys.modules[module]


def test_modules_of_an_entry_point_group_are_imported_once(install) -> None:
    install("pluggable_good", "print('imported')", "pluggable.one")
    install("pluggable_other", "raise AssertionError", "pluggable.another")
    assert plugins.import_group("pluggable.one") == ()
    assert "pluggable_good" in sys.modules
    assert "pluggable_other" not in sys.modules
    del sys.modules["pluggable_good"]
    plugins.import_group("pluggable.one")
    assert "pluggable_good" not in sys.modules


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("import sys; sys.exit('no license')", "SystemExit: no license"),
        ("1 +", "SyntaxError: "),
    ],
)
def test_broken_entry_point_is_skipped_and_reported(install, source: str, reason: str) -> None:
    group = f"pluggable.{reason[:6]}"
    install("pluggable_broken", source, group)
    install("pluggable_good", "", group)
    (left_out,) = plugins.import_group(group)
    assert left_out.startswith(
        "The entry point `mine = pluggable_broken` of pluggable_broken 1.5 can't be imported: "
    )
    assert reason in left_out
    assert "pluggable_good" in sys.modules


INIT = """
from official_lite.common import plugins
__getattr__, __all__ = plugins.attach_stub(__name__, __file__)
"""

STUB = """
from package.heavier import heavier_name as heavier_name
from package.heavy import heavy_name as heavy_name
"""

CHECK = """
import sys
import package
from package import light

def loaded():
    return sorted(name for name in sys.modules if "heav" in name)

assert not hasattr(package, "__wrapped__")
assert sorted(package.__all__) == ["heavier_name", "heavy_name"]
assert loaded() == []
assert package.heavy_name == 1
assert loaded() == ["package.heavy"]
assert package.heavier.heavier_name is package.heavier_name
for hidden in ("unlisted", "nothing"):
    try:
        getattr(package, hidden)
    except AttributeError as error:
        assert str(error) == f"module 'package' has no attribute {hidden!r}"
    else:
        raise AssertionError(hidden)
"""


def test_names_that_a_package_lists_in_its_stub_file_are_imported_on_first_use(
    tmp_path: pathlib.Path,
) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text(INIT)
    (package / "__init__.pyi").write_text(STUB)
    (package / "light.py").write_text("")
    (package / "heavy.py").write_text("heavy_name = 1\nunlisted = 2\n")
    (package / "heavier.py").write_text("heavier_name = object()\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{CHECK}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
