import pytest

from official_lite.common import errors
from official_lite.execution import execution_record

MEASURED = execution_record.ExecutionRecord(
    execution="xla",
    reason="the fastest",
    train_steps=500,
    seconds_per_step={"graph": 4e-3, "xla": 2e-3},
)
SHORT = execution_record.ExecutionRecord(
    execution="graph", reason="would not pay", train_steps=500, seconds_per_step={"graph": 4e-3}
)


def test_record_comes_back_as_it_was(tmp_path) -> None:
    assert execution_record.load(str(tmp_path)) is None
    execution_record.save(MEASURED, str(tmp_path))
    assert execution_record.load(str(tmp_path)) == MEASURED


def test_comparison_holds_for_ever_and_a_guess_for_as_long_a_training() -> None:
    assert MEASURED.holds_for(10**9)
    assert SHORT.holds_for(500)
    assert not SHORT.holds_for(501)


def test_description_has_the_figures() -> None:
    assert MEASURED.describe() == "xla: the fastest (graph 4,000, xla 2,000 µs per step)"


@pytest.mark.parametrize("text", ["{", '{"execution": "xla"}', "[]"])
def test_damaged_record_is_named(tmp_path, text) -> None:
    (tmp_path / "execution.json").write_text(text)
    with pytest.raises(errors.ConfigValueError, match=r"execution\.json"):
        execution_record.load(str(tmp_path))


def test_directory_says_what_auto_means_there(tmp_path) -> None:
    assert execution_record.describe_execution(str(tmp_path)) == ""
    execution_record.save(MEASURED, str(tmp_path))
    line = execution_record.describe_execution(str(tmp_path))
    assert line == f"# runtime.execution of {tmp_path}: {MEASURED.describe()}\n"
