import pytest


def test_sparsity_is_reported_from_the_first_step_on(train_digits, read_metrics, tmp_path) -> None:
    pruned = {
        "initial_sparsity": 0.5,
        "final_sparsity": 0.8,
        "power": 1.0,
        "end_step": 20,
        "frequency": 10,
    }
    train_digits(tmp_path, {"pruning": pruned}, log_interval=5)
    found = {each["step"]: each.get("pruning/sparsity") for each in read_metrics(tmp_path)}
    assert found[5] == pytest.approx(0.5, abs=0.01)
    assert found[10] == pytest.approx(0.65, abs=0.01)
    assert found[20] == pytest.approx(0.8, abs=0.01)
