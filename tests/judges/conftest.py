"""What the suites of other projects ask for and ours does not offer on purpose, with the reason."""

from collections.abc import Iterator

import pytest

# A part of the error, and the reason. Whatever fails in another way is a defect.
_EXCLUDED = {
    "FloatDistribution.step must be given": "A grid has no points for a float without a step.",
    "param_name mismatch": "A grid asks for the parameters of all trials in one order.",
}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    try:
        return (yield)
    except Exception as error:
        for text, reason in _EXCLUDED.items():
            if text in str(error):
                pytest.xfail(reason)
        raise
