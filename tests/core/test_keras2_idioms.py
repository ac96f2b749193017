import pathlib

import keras
import pytest

from official_lite.core import step_metrics
from tests import commands

SCRIPT = """
import keras
from official_lite.utils.testing import mock_task

assert not hasattr(keras.metrics.Metric, "reset_states")
mock_task.MockTask()
metric = keras.metrics.Mean()
metric.update_state(3.0)
metric.reset_states()
assert float(metric.result()) == 0.0
"""


@pytest.mark.slow
def test_metric_answers_to_its_old_word_once_there_is_a_task(tmp_path: pathlib.Path) -> None:
    """Not before: the import of a library changes no class of another one."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = commands.run([script])
    assert done.returncode == 0, done.stderr


def test_metric_is_reset_by_the_word_its_author_wrote() -> None:
    class Old(keras.metrics.Mean):
        def reset_states(self):
            self.reset_state()
            self.was_reset = True

    step_metrics.install()
    metric = Old()
    step_metrics.reset_metric(metric)
    assert metric.was_reset
    plain = keras.metrics.Mean()
    plain.update_state(1.0)
    step_metrics.reset_metric(plain)
    assert float(plain.count) == 0
