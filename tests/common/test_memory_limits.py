import resource

import pytest

from official_lite.common import error_report, errors


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch):
    def set_limit(size: int) -> None:
        monkeypatch.setattr(resource, "getrlimit", lambda kind: (size, size))

    return set_limit


def test_process_without_a_limit_is_not_warned(limit, caplog: pytest.LogCaptureFixture) -> None:
    limit(resource.RLIM_INFINITY)
    error_report.check_limit()
    assert error_report.describe_limit() == ""
    assert not caplog.records


def test_limit_is_a_warning_that_says_how_the_process_may_end(limit, caplog) -> None:
    limit(8_000_000_000)
    error_report.check_limit()
    assert "`ulimit -v` limits the address space of this process to 8.0 GB" in caplog.text
    assert "exit code 127, 134 or 139" in caplog.text


def test_limit_in_which_tensorflow_cannot_start_is_an_error(limit) -> None:
    limit(1_500_000_000)
    with pytest.raises(errors.OutOfMemoryError, match=r"to 1\.5 GB, and TensorFlow needs at least"):
        error_report.check_limit()


def test_available_memory_is_that_of_this_machine() -> None:
    available = error_report.available_memory()
    assert available is None or 10**7 < available < 10**15
