"""Keras's own tests of optimizers, schedules and callbacks pass with our classes.

The tests are read from the installed wheel; `keras_plugin` documents the replacements.
"""

import importlib.util
import pathlib
import xml.etree.ElementTree as ElementTree

import pytest

from tests import commands

_KERAS = pathlib.Path(importlib.util.find_spec("keras").origin).parent / "src"

_ROWS = "counts Keras' own scatter calls; here a kernel writes the rows, or the update is dense"
_LOGGED = "some missing gradients are logged once, and `warnings` are not used"
_RESUME = "a controller resumes from its checkpoints and does not read `model._initial_epoch`"
_LAST_BIT = "compares the last bit of a sum that two compiled functions compute"

# The tests that can't pass, with the reasons. A test that is listed but passes is also an error.
EXCLUDED = {
    "optimizers": {
        "OptimizerSparseTest.test_sparse_gradients_adadelta": _ROWS,
        "OptimizerSparseTest.test_sparse_gradients_adafactor": _ROWS,
        "OptimizerSparseTest.test_sparse_gradients_adagrad": _ROWS,
        "OptimizerSparseTest.test_sparse_gradients_loss_scale_optimizer_sgd": _ROWS,
        "OptimizerSparseTest.test_sparse_gradients_rmsprop": _ROWS,
        "OptimizerSparseTest.test_sparse_gradients_sgd": _ROWS,
        "OptimizerTest.test_empty_gradients": _LOGGED,
        "OptimizerTest.test_mixed_with_tf_variables": _LOGGED,
    },
    "callbacks": {
        "BackupAndRestoreCallbackTest.test_backup_corrupted": _RESUME,
        "BackupAndRestoreCallbackTest.test_best_case_epoch": _RESUME,
        "CSVLoggerTest.test_CSVLogger": "`train_and_evaluate` evaluates the last step as well",
        "LearningRateSchedulerTest.test_learning_rate_in_history": (
            "each hook has `logs` of its own, so a callback does not see what another one adds"
        ),
        "SwapEMAWeightsTest.test_swap_ema_weights": _LAST_BIT,
        "SwapEMAWeightsTest.test_swap_ema_weights_with_loss_scale_optimizer": _LAST_BIT,
        "TestTensorBoardV2.test_custom_summary": (
            "summaries of a step go to the `summary_dir` of the controller"
        ),
    },
}
_OPTIONS = {"optimizers": [], "callbacks": ["--fit-with-controller"]}
_PASSING = {"optimizers": 245, "callbacks": 55}
# The first file requires Orbax. The second one requires the `conftest.py` of Keras' repository,
# which the wheel lacks.
_WITHOUT = ("orbax_checkpoint_test.py", "remote_monitor_test.py")


def _run(folder: str, report: pathlib.Path) -> dict[str, str]:
    """Run the tests in a folder, and return whether each of them passed, failed or was skipped."""
    files = [p for p in sorted((_KERAS / folder).rglob("*_test.py")) if p.name not in _WITHOUT]
    if not files:
        pytest.skip("the installed Keras comes without its tests")
    options = ["-c", "/dev/null", f"--rootdir={report.parent}", "--import-mode=importlib"]
    options += ["-q", "-W", "ignore", "-p", "no:cacheprovider", f"--junitxml={report}"]
    options += ["-p", "tests.judges.keras_plugin", *_OPTIONS[folder]]
    process = commands.run(
        ["-m", "pytest", *options, *files], env={"PYTHONPATH": str(commands.ROOT)}
    )
    assert report.exists(), process.stderr[-3000:]
    return {
        f"{case.get('classname').rpartition('.')[-1]}.{case.get('name')}": _outcome(case)
        for case in ElementTree.parse(report).getroot().iter("testcase")
    }


def _outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "skipped" if case.find("skipped") is not None else "passed"


@pytest.mark.slow
@pytest.mark.parametrize("folder", EXCLUDED)
def test_keras_test_suites_pass_with_official_lite_classes_except_excluded_tests(
    folder: str, tmp_path: pathlib.Path
) -> None:
    outcomes = _run(folder, tmp_path / "report.xml")
    failed = {name for name, outcome in outcomes.items() if outcome == "failed"}
    assert failed == set(EXCLUDED[folder])
    assert list(outcomes.values()).count("passed") >= _PASSING[folder]
