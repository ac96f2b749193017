import json

import pytest

from official_lite.common import errors
from official_lite.nas import architecture


def _ask(**space):
    return {label: architecture.ask_for(label, options) for label, options in space.items()}


def test_fixed_arch_selects_options_by_value_and_ignores_an_empty_architecture() -> None:
    with architecture.fixed_arch({"op": "b", "inputs": [0, 2], "depth": 3, "digit": 7}):
        asked = _ask(op=["a", "b"], inputs=[[0, 1], [0, 2]], depth=[2, 3], digit=["5", "7"])
    assert asked == {"op": 1, "inputs": 1, "depth": 1, "digit": 1}
    for nothing in (None, "", {}):
        with architecture.fixed_arch(nothing):
            assert not architecture.is_fixed()


def test_one_error_lists_all_mismatches_between_architecture_and_model() -> None:
    fixed = architecture.fixed_arch({"op": "c", "optt": 1})
    with pytest.raises(errors.ConfigValueError) as caught, fixed:
        _ask(op=["a", "b"], depth=[2], opt=[1])
    message = str(caught.value)
    assert "`op` is 'c'; expected one of a, b." in message
    assert "There is no choice for depth, opt." in message
    assert "no choice `optt`. Did you mean `opt`" in message


def test_architecture_file_records_choices_probabilities_metric_and_step(tmp_path) -> None:
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


def test_search_space_hash_ignores_label_order() -> None:
    one = architecture.space_hash({"a": [1, 2], "b": [3]})
    assert one == architecture.space_hash({"b": [3], "a": [1, 2]})
    assert one != architecture.space_hash({"b": [3], "a": [2, 1]})


def test_architecture_history_is_sorted_and_keeps_the_last_record_of_a_repeated_step(
    tmp_path,
) -> None:
    space = {"first": ["conv", "pool"]}
    architecture.write_arch(str(tmp_path), {"first": "conv"}, space=space, step=20)
    # A restart resumed from step 10, so steps 20 and 30 were recorded twice.
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


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1]", '{"format": 9, "arch": {}}', '{"arch": 3}', '{"arch": {}, "options": 3}'],
)
def test_missing_or_invalid_architecture_file_raises_an_error_that_names_it(tmp_path, text) -> None:
    assert architecture.read_found_arch(str(tmp_path)) is None
    if text:
        (tmp_path / "arch.json").write_text(text)
    read = architecture.read_found_arch if "options" in text else architecture.read_arch
    with pytest.raises(errors.ConfigValueError, match=r"arch\.json"):
        read(str(tmp_path))
