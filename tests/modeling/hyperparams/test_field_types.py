from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Dict, List, Literal, Optional, Tuple, Union  # noqa: UP035  # as in ported configs

import numpy as np
import pytest

from official_lite.common import errors
from official_lite.modeling import hyperparams


@dataclasses.dataclass
class Leaf(hyperparams.Config):
    x: int = 1


@dataclasses.dataclass
class WiderLeaf(Leaf):
    y: int = 2


@dataclasses.dataclass
class Everything(hyperparams.Config):
    flag: bool = False
    count: int = 0
    rate: float = 0.5
    name: str = ""
    maybe: Optional[int] = None  # noqa: UP045  # as in ported configs
    implicit: int = None
    anything: Any = None
    number: Union[float, int] = 0  # noqa: UP007  # as in ported configs
    path: Union[Sequence[str], str, hyperparams.Config] = ""  # noqa: UP007  # as in ported configs
    names: List[str] = dataclasses.field(default_factory=list)  # noqa: UP006  # as in ported configs
    grid: list[list[float]] = dataclasses.field(default_factory=list)
    sizes: Tuple[int, ...] = ()  # noqa: UP006  # as in ported configs
    texts: Tuple[str] = ("a",)  # noqa: UP006  # as in ported configs
    pair: tuple[int, float] = (1, 2.0)
    steps: Sequence[int] = (1, 2)
    weights: Dict[str, float] = None  # noqa: UP006  # as in ported configs
    slices: Mapping[str, int] | None = None
    color: Literal["red", "blue"] = "red"
    near: Annotated[int, "a note"] = 0
    leaf: Leaf = dataclasses.field(default_factory=Leaf)
    leaves: list[Leaf] = dataclasses.field(default_factory=list)
    maybe_leaf: Leaf | None = None
    model: hyperparams.Config = None
    bare: list = dataclasses.field(default_factory=list)


class Color(enum.StrEnum):
    BLUE = "blue"


def ways_in():
    return {
        "construction": lambda field, value: Everything(**{field: value}),
        "dict": lambda field, value: Everything({field: value}),
        "assignment": lambda field, value: assigned(field, value),
        "override": lambda field, value: Everything().override({field: value}),
        "replace": lambda field, value: Everything().replace(**{field: value}),
    }


def assigned(field, value):
    config = Everything()
    setattr(config, field, value)
    return config


@pytest.mark.parametrize("way", ways_in())
@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("count", "abc", r"`count` of Everything: expected int, got 'abc' \(str\)"),
        ("count", True, "expected int, got True"),
        ("count", 3.5, r"expected int, got 3.5 \(float\)\.$"),
        ("count", 1e6, "Write 1000000"),
        ("count", "1_000", "Write 1000, without quotes"),
        ("count", None, r"got null\. Only optional fields accept null"),
        ("count", [1], "expected int"),
        ("rate", "0.1", "expected float, got '0.1' .* Write 0.1, without quotes"),
        ("rate", [0.1], "expected float"),
        ("rate", False, "expected float"),
        ("flag", 1, "expected bool, got 1 .* Write true or false"),
        ("flag", "yes", "Write true or false"),
        ("name", 5, "expected str, got 5 .* Write '5' in quotes"),
        ("maybe", "None", r"expected int \| null, got 'None' .* Write null"),
        ("names", "a", r"expected list\[str\], got 'a'"),
        ("names", [1], r"`names\[0\]` of Everything: expected str"),
        ("grid", [[1], ["x"]], r"`grid\[1\]\[0\]` of Everything: expected float"),
        ("sizes", [1, 2.5], r"`sizes\[1\]`"),
        ("weights", {"a": "x"}, r"`weights\.a` of Everything: expected float"),
        ("leaf", 5, "expected Leaf, got 5"),
        ("leaf", {"x": "a"}, r"`leaf\.x` of Everything: expected int"),
        ("leaf", Everything(), "expected .*Leaf or a subclass, got .*Everything"),
        ("leaves", [{"x": 1.5}], r"`leaves\[0\]\.x` of Everything: expected int"),
        ("anything", {1, 2}, "Unknown type set"),
        ("path", 5, "expected list.* | str | Config, got 5"),
    ],
)
def test_wrong_type_is_refused_whichever_way_it_comes(way, field, value, message):
    with pytest.raises(errors.ConfigTypeError, match=message):
        ways_in()[way](field, value)


@pytest.mark.parametrize(
    ("field", "value"),
    [("count", 2**63), ("color", "green"), ("pair", [1]), ("anything", 10**30)],
)
def test_unusable_value_of_the_right_type_is_a_value_error(field, value):
    with pytest.raises(errors.ConfigValueError, match=f"`{field}` of Everything"):
        Everything(**{field: value})


@pytest.mark.parametrize(
    ("field", "value", "stored"),
    [
        ("rate", 1, 1.0),
        ("rate", np.float32(0.5), 0.5),
        ("count", np.int64(3), 3),
        ("rate", np.int32(3), 3.0),
        ("rate", np.longdouble(0.5), 0.5),
        ("flag", np.bool_(True), True),
        ("color", np.str_("red"), "red"),
        ("anything", [np.bool_(False), np.float16(0.5)], [False, 0.5]),
        ("name", Color.BLUE, "blue"),
        ("number", 1, 1),
        ("number", 1.5, 1.5),
        ("implicit", 4, 4),
        ("implicit", None, None),
        ("path", ["a", "b"], ["a", "b"]),
        ("path", "a", "a"),
        ("sizes", [1, 2], (1, 2)),
        ("texts", ["a", "b", "c"], ("a", "b", "c")),
        ("pair", [3, 4], (3, 4.0)),
        ("steps", [3], (3,)),
        ("grid", [[1, 2], []], [[1.0, 2.0], []]),
        ("bare", [[1], "a"], [[1], "a"]),
        ("anything", [1, ("a", None)], [1, ("a", None)]),
        ("color", "blue", "blue"),
        ("near", 2, 2),
    ],
)
def test_conversions(field, value, stored):
    kept = getattr(Everything(**{field: value}), field)
    assert repr(kept) == repr(stored)
    assert type(kept) is type(stored)


def test_dicts_become_configs():
    config = Everything(path={"a": "x"}, model={"depth": {"x": 1}}, slices={"a": 1})
    assert config.path.a == "x"
    assert type(config.model.depth) is hyperparams.Config
    config.override({"slices": {"b": 2}})
    assert config.slices.as_dict() == {"a": 1, "b": 2}


def test_dicts_are_merged_into_the_class_that_is_there():
    config = Everything(leaf=WiderLeaf(y=5), leaves=[WiderLeaf(), Leaf()])
    config.override({"leaf": {"x": 3}, "leaves": [{"y": 7}, {"x": 8}]})
    assert config.leaf == WiderLeaf(x=3, y=5)
    assert config.leaves == [WiderLeaf(y=7), Leaf(x=8)]


@pytest.mark.parametrize("length", [1, 2, 3])
def test_lists_of_configs_are_replaced_whatever_their_length(length):
    config = Everything(leaves=[Leaf(x=5), WiderLeaf(x=6, y=7)])
    config.override({"leaves": [{"x": 2}, {}, {}][:length]})
    # The new values have the classes of the old ones, so that the file of a run can be applied.
    assert config.leaves == [Leaf(x=2), WiderLeaf(), Leaf()][:length]
    hyperparams.override_params_dict(config, "leaves[0].x=3", is_strict=True)
    assert config.leaves[0] == Leaf(x=3), "a single element is changed"


def test_configs_are_copied_and_unlocked_when_assigned():
    leaf = Leaf()
    leaf.lock()
    config = Everything(leaf=leaf, leaves=[leaf])
    config.leaf.x = config.leaves[0].x = 9
    assert leaf.x == 1


def test_untyped_parameters_count_as_a_dict():
    config = Everything(leaf=WiderLeaf())
    config.leaf = hyperparams.ParamsDict({"y": 4})
    assert config.leaf == WiderLeaf(y=4)
