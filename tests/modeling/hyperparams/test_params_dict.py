import copy
import pickle

import pytest

from official_lite.common import errors
from official_lite.modeling import hyperparams
from official_lite.modeling.hyperparams import ParamsDict, params_dict


def test_only_the_constructor_and_loose_overrides_add_keys():
    params = ParamsDict({"a": {"b": 1}})
    params.override({"a": {"c": 2}}, is_strict=False)
    assert params.as_dict() == {"a": {"b": 1, "c": 2}}
    with pytest.raises(errors.UnknownKeyError, match=r"`a\.cc` of ParamsDict: .* Did you mean `c`"):
        params.override({"a": {"cc": 2}})
    with pytest.raises(KeyError, match="Known: `a`"):
        params.x = 1


def test_reading_an_unknown_key_is_an_attribute_error():
    params = ParamsDict({"train_steps": 1})
    assert not hasattr(params, "steps")
    assert params.get("steps", 5) == 5
    with pytest.raises(AttributeError, match="Did you mean `train_steps`"):
        _ = params.train_step


def test_values_are_copied():
    values = {"a": [{"b": 1}]}
    params = ParamsDict(values)
    values["a"][0]["b"] = params.as_dict()["a"][0]["b"] = 2
    assert params.a == [{"b": 1}]
    assert "_locked" not in params


def test_scalars_and_dicts_replace_each_other():
    params = ParamsDict({"a": 1, "b": {"c": 2}})
    params.override({"a": {"x": 1}, "b": 3})
    assert params.as_dict() == {"a": {"x": 1}, "b": 3}


def test_lock_is_deep():
    params = ParamsDict({"a": {"b": {"c": 1}}})
    params.lock()
    for change in (
        lambda: setattr(params.a.b, "c", 2),
        lambda: params.override({"a": {"b": {"c": 2}}}),
        lambda: delattr(params.a, "b"),
    ):
        with pytest.raises(errors.LockedConfigError, match="is locked"):
            change()
    unlocked = params_dict.copy_value(params)
    unlocked.a.b.c = 2
    assert params.a.b.c == 1


def test_copies_and_pickles_are_equal_in_content():
    params = ParamsDict({"a": {"b": [1]}})
    for twin in (copy.deepcopy(params), pickle.loads(pickle.dumps(params))):
        assert twin.as_dict() == params.as_dict()
        assert twin.a is not params.a


def test_deleted_keys_are_gone():
    params = ParamsDict({"a": 1})
    del params.a
    assert "a" not in params
    with pytest.raises(AttributeError, match="no key 'a' to delete"):
        del params.a


@pytest.mark.parametrize(
    "override",
    [
        "a=5,b.c=x",
        "{a: 5, b: {c: x}}",
        "a: 5\nb:\n  c: x\n",
        " a = 5 , b.c = x",
        '{"a": 5, "b": {"c": "x"}}',
    ],
)
def test_overrides_as_text(override):
    params = ParamsDict({"a": 1, "b": {"c": "", "d": 2}})
    hyperparams.override_params_dict(params, override, is_strict=True)
    assert params.as_dict() == {"a": 5, "b": {"c": "x", "d": 2}}


@pytest.mark.parametrize("name", ["exp.yaml", "exp.yml", "exp.json", "exp.txt"])
def test_overrides_as_files(tmp_path, name):
    path = tmp_path / name
    path.write_text('{"a": 5}')
    for override in (path, str(path)):
        params = hyperparams.override_params_dict(ParamsDict({"a": 1}), override, is_strict=True)
        assert params.a == 5


@pytest.mark.parametrize("override", [None, "", {}, "# nothing"])
def test_empty_override_changes_nothing(override):
    params = hyperparams.override_params_dict(ParamsDict({"a": 1}), override, is_strict=True)
    assert params.as_dict() == {"a": 1}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("a:10", r"(?s)position 0.*a:10.*instead of `:`"),
        ("nonsense", r"(?s)position 0.*nonsense.*Expected `name=value`"),
        ("a=1,nonsense", "position 4"),
        ("a: [1\nb: 2", "override:2"),
        ("{a: 1, a: 2}", "override:1: the key 'a' is already given"),
        (5, "got int"),
    ],
)
def test_malformed_override_is_never_taken_for_a_file(override, message):
    with pytest.raises(errors.ConfigValueError, match=message):
        hyperparams.override_params_dict(ParamsDict({"a": 1}), override, is_strict=True)


def test_missing_override_file_is_named():
    with pytest.raises(hyperparams.ConfigFileError, match=r"no/such\.yaml"):
        hyperparams.override_params_dict(ParamsDict({"a": 1}), "no/such.yaml", is_strict=True)


def test_value_that_ends_like_a_file_is_a_value():
    params = hyperparams.override_params_dict(ParamsDict({"a": ""}), "a=x.yaml", is_strict=True)
    assert params.a == "x.yaml"


def test_dotted_yaml_key_is_explained():
    with pytest.raises(errors.UnknownKeyError, match=r"`a\.b=value` on the command line"):
        hyperparams.override_params_dict(ParamsDict({"a": {"b": 1}}), "a.b: 10", is_strict=True)


def test_list_elements_have_indices():
    params = ParamsDict({"a": [1, 2, 3], "b": [{"c": 1}]})
    hyperparams.override_params_dict(params, "a[1]=5,a[3]=6,b[0]={c: 2}", is_strict=True)
    assert params.as_dict() == {"a": [1, 5, 3, 6], "b": [{"c": 2}]}


def test_saved_tree_reads_back_plain(tmp_path):
    path = tmp_path / "params.yaml"
    hyperparams.save_params_dict_to_yaml(ParamsDict({"a": (1, 2), "b": {"c": "off"}}), path)
    assert path.read_text() == "a: [1, 2]\nb:\n  c: 'off'\n"
    read = hyperparams.read_yaml_to_params_dict(path)
    assert read.as_dict() == {"a": [1, 2], "b": {"c": "off"}}
    assert type(read.as_dict()) is dict


def test_override_must_be_a_dict():
    with pytest.raises(errors.ConfigTypeError, match="An override must be a dict, got list"):
        ParamsDict().override([1])
