import collections
import sys

import pytest

from official_lite.common import errors, plugins


class Hook: ...


class LoudHook(Hook): ...


def write(directory, text, name="hooks.py"):
    (directory / name).write_text(text)
    return directory / name


HOOK_FILE = "import collections\nclass MyHook(collections.OrderedDict): pass\nclass Other: pass\n"


def test_a_registered_name_comes_first():
    names = {}
    plugins.register(names, "hooks/loud")(LoudHook)
    assert plugins.resolve("hooks/loud", registry=names, base=Hook) is LoudHook


def test_a_registered_string_is_resolved_in_its_turn():
    names = {}
    plugins.register(names, "ordered")("collections:OrderedDict")
    assert plugins.resolve("ordered", registry=names) is collections.OrderedDict


def test_an_attribute_of_a_module_is_found():
    assert plugins.resolve("collections:OrderedDict", base=dict) is collections.OrderedDict


@pytest.mark.parametrize(
    "spec",
    [
        "collections:OrderedDict.fromkeys",
        "collections:OrderedDict.__init__",
        "collections:namedtuple.__globals__",
        "collections:namedtuple.__globals__.clear",
        "collections:_sys.modules.clear",
        "collections:abc.Mapping",
        "collections:_sys",
        "collections:__builtins__",
        "collections:__loader__",
    ],
)
def test_a_name_reaches_neither_into_an_object_nor_what_is_private(spec):
    with pytest.raises(errors.ConfigValueError, match="expected the public name of a class"):
        plugins.resolve(spec)


def test_a_class_stands_for_itself():
    assert plugins.resolve(LoudHook, base=Hook) is LoudHook


def test_a_file_in_the_workspace_is_found_without_touching_the_path(tmp_path):
    write(tmp_path, HOOK_FILE)
    path_before = list(sys.path)
    for spec in ("{workspace}/hooks.py:MyHook", "hooks.py:MyHook", "{workspace}/hooks.py"):
        found = plugins.resolve(spec, base=dict, workspace=tmp_path)
        assert found.__name__ == "MyHook"
    assert sys.path == path_before
    assert "hooks" not in sys.modules


def test_two_files_of_one_name_do_not_collide(tmp_path):
    found = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, f"class MyHook(dict): origin = {name!r}\n")
        found.append(plugins.resolve(f"{tmp_path}/{name}/hooks.py", base=dict))
    assert [cls.origin for cls in found] == ["a", "b"]


def test_two_candidates_in_a_file_are_both_named(tmp_path):
    write(tmp_path, "class One(dict): pass\nclass Two(dict): pass\n")
    with pytest.raises(errors.ConfigValueError, match="found `One` and `Two`"):
        plugins.resolve("hooks.py", base=dict, workspace=tmp_path)


def test_no_candidate_in_a_file_is_an_error(tmp_path):
    write(tmp_path, "x = 1\n")
    with pytest.raises(errors.ConfigValueError, match="exactly one subclass of `dict`; found none"):
        plugins.resolve("hooks.py", base=dict, workspace=tmp_path)


def test_an_import_error_in_a_file_comes_through(tmp_path):
    write(tmp_path, "import no_such_module_anywhere\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_module_anywhere") as raised:
        plugins.resolve("hooks.py:MyHook", workspace=tmp_path)
    assert raised.traceback[-1].path == tmp_path / "hooks.py"


def test_a_file_that_failed_is_tried_again(tmp_path):
    path = write(tmp_path, "raise ValueError('broken')\n")
    with pytest.raises(ValueError, match="broken"):
        plugins.resolve(f"{path}:MyHook")
    write(tmp_path, "class MyHook: mended = True\n")
    assert plugins.resolve(f"{path}:MyHook").mended


def test_an_unknown_name_is_answered_with_the_nearest():
    names = {}
    plugins.register(names, "progress_bar")(Hook)
    with pytest.raises(errors.UnknownNameError, match=r"no hook 'progres_bar'.*`progress_bar`"):
        plugins.resolve("progres_bar", registry=names, kind="hook")


def test_a_dotted_class_is_answered_with_how_to_write_it():
    with pytest.raises(errors.UnknownNameError, match="write `collections:OrderedDict`"):
        plugins.resolve("collections.OrderedDict")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no_such_package.hooks:MyHook", "no module `no_such_package`"),
        ("collections:OrderedDickt", "Did you mean `OrderedDict`"),
        ("nowhere.py:MyHook", "There is no file"),
    ],
)
def test_what_is_not_there_is_named(spec, message, tmp_path):
    with pytest.raises(errors.UnknownNameError, match=message):
        plugins.resolve(spec, workspace=tmp_path)


def test_the_workspace_must_be_known_where_it_is_used():
    with pytest.raises(errors.ConfigValueError, match="no workspace is set"):
        plugins.resolve("{workspace}/hooks.py:MyHook")


@pytest.mark.parametrize("spec", ["collections:OrderedDict", "sys:path"])
def test_a_thing_of_another_kind_is_refused(spec):
    with pytest.raises(errors.ConfigTypeError, match=r"must be a `.*Hook`"):
        plugins.resolve(spec, base=Hook)


def test_a_function_may_stand_for_a_class():
    assert plugins.resolve("math:sqrt", base=Hook)(4.0) == 2.0


def test_load_module_takes_modules_and_files(tmp_path):
    assert plugins.load_module("collections") is collections
    assert plugins.load_module("a.py", workspace=write(tmp_path, "x = 3\n", "a.py").parent).x == 3


class Patient(Hook):
    def __init__(self, metric, patience=3):
        self.metric, self.patience = metric, patience


NAMES = {"patient": Patient}


def create(entry):
    return plugins.factory(entry, registry=NAMES, base=Hook, kind="hook")()


def test_entry_of_a_config_creates_with_its_arguments():
    made = create({"name": "patient", "metric": "loss"})
    assert (made.metric, made.patience) == ("loss", 3)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"name": "patient", "metrik": "loss"}, "no argument `metrik`.*metric"),
        ("patient", "hook 'patient' can't be created: missing.*'metric'"),
        ({"patience": 3}, "must be a name"),
        (["patient"], "must be a name"),
    ],
)
def test_entry_with_wrong_arguments_is_refused_before_it_creates_anything(entry, message):
    with pytest.raises(errors.ConfigError, match=message):
        create(entry)


def test_positional_arguments_of_the_caller_are_none_of_the_config():
    factory = plugins.factory({"name": "patient"}, num_args=1, registry=NAMES)
    assert factory("loss").metric == "loss"
    with pytest.raises(errors.ConfigError, match="no argument `metric`"):
        plugins.factory({"name": "patient", "metric": "loss"}, num_args=1, registry=NAMES)


@pytest.mark.parametrize("spec", ["os:abort", "a.b:C.d", "hooks.py", "{workspace}/h.py:Hook"])
def test_modules_and_files_are_code(spec):
    assert plugins.names_code(spec)


@pytest.mark.parametrize("spec", ["early_stopping", "a/b", "host:80", "gs://bucket/x", "note: x"])
def test_other_texts_are_not(spec):
    assert not plugins.names_code(spec)
