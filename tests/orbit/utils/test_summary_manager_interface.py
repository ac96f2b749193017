import pytest

from official_lite.orbit import utils


def test_a_manager_must_write_flush_and_give_writers():
    class Half(utils.SummaryManagerInterface):
        def flush(self):
            pass

    with pytest.raises(TypeError, match="summary_writer"):
        Half()
    assert issubclass(utils.SummaryManager, utils.SummaryManagerInterface)
