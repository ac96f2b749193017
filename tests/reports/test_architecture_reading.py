import pytest

from official_lite.common import errors
from official_lite.nas import architecture
from official_lite.reports.architecture_reading import read_found_arch


def test_run_that_searches_nothing_has_none(tmp_path) -> None:
    assert read_found_arch(str(tmp_path)) is None


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
    found = read_found_arch(str(tmp_path))
    assert found.arch == {"first": "conv"}
    assert [(step, probs["first"][0]) for step, probs in found.history] == [
        (10, 0.0),
        (20, 0.3),
        (30, 0.4),
    ]


def test_file_of_another_kind_is_an_error(tmp_path) -> None:
    (tmp_path / "arch.json").write_text('{"arch": {}, "options": 3}')
    with pytest.raises(errors.ConfigValueError, match="damaged"):
        read_found_arch(str(tmp_path))
