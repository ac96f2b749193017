import dataclasses
from collections.abc import Callable

import pytest

from official_lite.common import errors
from official_lite.modeling import hyperparams
from official_lite.modeling.hyperparams import field_checks


@dataclasses.dataclass
class Toy(hyperparams.Config):
    value: float | None = None
    word: str = ""
    patterns: list[str] = dataclasses.field(default_factory=list)


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (field_checks.require_not_negative, 0, -1),
        (field_checks.require_positive, 1, 0),
        (field_checks.require_positive_or_none, None, 0),
        (field_checks.require_positive_or_none, 0.5, float("inf")),
    ],
)
def test_number_out_of_bounds_is_named(
    check: Callable[..., None], good: float | None, bad: float
) -> None:
    check(Toy(value=good), "value")
    with pytest.raises(errors.ConfigValueError, match="`value` is"):
        check(Toy(value=bad), "value")


def test_unknown_word_is_answered_with_the_nearest() -> None:
    field_checks.require_one_of(Toy(word="TPU"), "word", ["tpu", "off"])
    with pytest.raises(errors.ConfigValueError, match="`tpu`"):
        field_checks.require_one_of(Toy(word="tup"), "word", ["tpu", "off"])


def test_directory_that_leads_elsewhere_is_refused() -> None:
    field_checks.require_subdirectories(Toy(word="best"), "word")
    with pytest.raises(errors.ConfigValueError, match=r"`word` must be .*; got '\.\./best'"):
        field_checks.require_subdirectories(Toy(word="../best"), "word")


def test_pattern_that_cannot_be_compiled_is_shown() -> None:
    field_checks.require_patterns(Toy(patterns=["a|b"]), "patterns")
    with pytest.raises(errors.ConfigValueError, match=r"'a\('"):
        field_checks.require_patterns(Toy(patterns=["a("]), "patterns")
