import json

import pytest

from official_lite.common import errors
from official_lite.nas import architecture


def _ask(**space):
    return {label: architecture.ask_for(label, options) for label, options in space.items()}


def test_choices_are_answered_by_name_index_or_number() -> None:
    with architecture.fixed_arch({"op": "b", "inputs": [0, 2], "depth": 3, "digit": 7}):
        asked = _ask(op=["a", "b"], inputs=[[0, 1], [0, 2]], depth=[2, 3], digit=["5", "7"])
    assert asked == {"op": 1, "inputs": 1, "depth": 1, "digit": 1}
    assert not architecture.is_fixed()


def test_nothing_is_answered_while_choices_are_open() -> None:
    with pytest.raises(RuntimeError, match="the choice 'op' has no value"):
        _ask(op=["a", "b"])


@pytest.mark.parametrize("nothing", [None, "", {}])
def test_nothing_leaves_choices_open(nothing) -> None:
    with architecture.fixed_arch(nothing):
        assert not architecture.is_fixed()


def test_all_that_does_not_fit_is_said_at_once() -> None:
    fixed = architecture.fixed_arch({"op": "c", "optt": 1})
    with pytest.raises(errors.ConfigValueError) as caught, fixed:
        _ask(op=["a", "b"], depth=[2], opt=[1])
    message = str(caught.value)
    assert "`op` is 'c'; expected one of a, b." in message
    assert "There is no choice for depth, opt." in message
    assert "no choice `optt`. Did you mean `opt`" in message


def test_one_label_has_one_set_of_options() -> None:
    with architecture.record_space():
        _ask(op=["a", "b"])
        with pytest.raises(errors.ConfigValueError, match="the same options, but these differ"):
            _ask(op=["a"])


def test_space_is_recorded_by_building() -> None:
    with architecture.record_space() as space:
        assert _ask(op=["a", "b"], units=[8, 16]) == {"op": 0, "units": 0}
    assert space == {"op": ["a", "b"], "units": [8, 16]}


def test_file_holds_what_was_found_and_how(tmp_path) -> None:
    architecture.write_arch(
        str(tmp_path),
        {"op": "b"},
        space={"op": ["a", "b"]},
        probs={"op": [0.25, 0.75]},
        metric={"accuracy": 0.5},
        step=7,
    )
    content = json.loads((tmp_path / "arch.json").read_text())
    assert content["format"] == 1
    assert content["arch"] == {"op": "b"}
    assert content["probs"] == {"op": [0.25, 0.75]}
    assert (content["metric"], content["step"]) == ({"accuracy": 0.5}, 7)
    for path in (tmp_path, tmp_path / "arch.json"):
        assert architecture.read_arch(path) == {"op": "b"}


def test_hash_of_a_space_does_not_depend_on_order() -> None:
    one = architecture.space_hash({"a": [1, 2], "b": [3]})
    assert one == architecture.space_hash({"b": [3], "a": [1, 2]})
    assert one != architecture.space_hash({"b": [3], "a": [2, 1]})


@pytest.mark.parametrize("text", ["{", "[1]", '{"format": 9, "arch": {}}', '{"arch": 3}'])
def test_file_that_is_none_is_refused(tmp_path, text) -> None:
    (tmp_path / "arch.json").write_text(text)
    with pytest.raises(errors.ConfigValueError, match=r"arch\.json is no"):
        architecture.read_arch(tmp_path)


def test_missing_file_is_refused(tmp_path) -> None:
    with pytest.raises(errors.ConfigValueError, match="contains no architecture"):
        architecture.read_arch(tmp_path)


def test_run_that_searches_nothing_has_none(tmp_path) -> None:
    assert architecture.read_found_arch(str(tmp_path)) is None


def test_probabilities_come_in_the_order_of_steps(tmp_path) -> None:
    space = {"first": ["conv", "pool"]}
    architecture.write_arch(str(tmp_path), {"first": "conv"}, space=space, step=20)
    # The second start went on from step 10.
    steps = [10, 20, 30, 20, 30]
    lines = [
        architecture.to_history_line(step, {"first": [n / 10, 1 - n / 10]})
        for n, step in enumerate(steps)
    ]
    (tmp_path / architecture.HISTORY_FILE).write_text("\n".join(lines) + '\n{"step": 4')
    found = architecture.read_found_arch(str(tmp_path))
    assert found.arch == {"first": "conv"}
    assert [(step, probs["first"][0]) for step, probs in found.history] == [
        (10, 0.0),
        (20, 0.3),
        (30, 0.4),
    ]


def test_file_of_another_kind_is_an_error(tmp_path) -> None:
    (tmp_path / "arch.json").write_text('{"arch": {}, "options": 3}')
    with pytest.raises(errors.ConfigValueError, match="damaged"):
        architecture.read_found_arch(str(tmp_path))
