"""Configs, listings and errors must not wait for TensorFlow."""

import json
import subprocess
import sys

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


def _top_level_modules_after(statement: str) -> set[str]:
    code = f"{statement}; import sys, json; print(json.dumps([*sys.modules]))"
    output = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    return {name.partition(".")[0] for name in json.loads(output)}


@pytest.mark.parametrize("module", LIGHT)
def test_light_module_brings_no_heavy_one(module: str) -> None:
    assert not _top_level_modules_after(f"import {module}") & set(HEAVY)


@pytest.mark.slow
def test_core_brings_no_datasets_library() -> None:
    loaded = _top_level_modules_after("import official_lite.core.train_lib")
    assert "tensorflow" in loaded
    assert "tensorflow_datasets" not in loaded
