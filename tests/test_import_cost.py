"""Modules for configs, listings and errors must not import TensorFlow."""

import subprocess
import sys
from collections.abc import Sequence

import pytest

LIGHT = [
    "official_lite",
    "official_lite.common.app",
    "official_lite.common.flags",
    "official_lite.common.cluster",
    "official_lite.core.config_definitions",
    "official_lite.core.exp_factory",
    "official_lite.core.registry",
    "official_lite.core.task_factory",
    "official_lite.core.train_utils",
    "official_lite.modeling.hyperparams",
    "official_lite.modeling.multitask.configs",
    "official_lite.nas",
    "official_lite.modeling.optimization",
    "official_lite.run.run_reading",
    "registry_imports",
]
HEAVY = ("tensorflow", "keras", "numpy", "tensorflow_datasets")


_IMPORT_ALL = """
import importlib, sys

for name in sys.argv[2:]:
    importlib.import_module(name)
    loaded = {module.partition(".")[0] for module in sys.modules}
    if heavy := loaded & set(sys.argv[1].split(",")):
        sys.exit(f"{name} imports {heavy}")
"""


def _import_all(modules: Sequence[str], heavy: Sequence[str]) -> str:
    """Import modules; return an error that names the first with a heavy import, or ""."""
    command = [sys.executable, "-c", _IMPORT_ALL, ",".join(heavy), *modules]
    return subprocess.run(command, capture_output=True, text=True).stderr


def test_config_and_listing_modules_import_neither_tensorflow_nor_numpy() -> None:
    assert _import_all(LIGHT, HEAVY) == ""


def test_modules_that_list_or_start_the_trials_of_a_study_do_not_import_tensorflow() -> None:
    modules = ["official_lite.search", "official_lite.tools.search", "official_lite.reports.page"]
    assert _import_all(modules, ["tensorflow", "keras"]) == ""


@pytest.mark.slow
def test_core_does_not_import_tensorflow_datasets() -> None:
    assert "imports" in _import_all(["official_lite.core.train_lib"], ["tensorflow"])
    assert "imports" not in _import_all(["official_lite.core.train_lib"], ["tensorflow_datasets"])
