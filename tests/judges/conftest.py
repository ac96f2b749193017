"""The cases of Optuna's suites that ours can't hold, with the reason.

Each one is expected to fail with a `ValueError`. A case that holds after all fails the run, and so
does any other failure.
"""

import pytest

_NO_STEP = "A grid has no points for a float without a step."
_ORDER = "A grid asks for the parameters of all trials in one order."

# The objectives 0 and 4 of Optuna's suite ask for a float without a step.
_PAIRS = [(one, other) for one in range(6) for other in range(6) if {one, other} & {0, 4}]
_OF_PAIRS = "test_combination_of_different_distributions_objective"

EXCLUDED = {
    "TestGrid": {
        **{f"test_float[distribution{number}]": _NO_STEP for number in range(4)},
        "test_conditional_sample_independent": _ORDER,
        "test_nan_objective_value": _NO_STEP,
        "test_partial_fixed_sampling": _NO_STEP,
        "test_single_parameter_objective[<lambda>0]": _NO_STEP,
        "test_single_parameter_objective[<lambda>4]": _NO_STEP,
        "test_conditional_parameter_objective": _NO_STEP,
        **{f"{_OF_PAIRS}[<lambda>{one}-<lambda>{other}]": _NO_STEP for one, other in _PAIRS},
        **{f"test_dynamic_range_objective[{r}]": _NO_STEP for r in ("0-5", "0-20", "20-30")},
    }
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        excluded = EXCLUDED.get(getattr(item.parent, "name", ""), {})
        if "judges" in item.path.parts and item.name in excluded:
            reason = excluded[item.name]
            # Strict, so that an exclusion that is no longer needed is noticed.
            item.add_marker(pytest.mark.xfail(reason=reason, raises=ValueError, strict=True))
