"""The utilities of training scripts under their Model Garden names.

The implementations are in other modules. Names are resolved on first use, so that parsing a config
does not import TensorFlow.
"""

import importlib
from typing import Any

_NAMES = {
    "official_lite.checkpoint.contents": ("read_global_step_from_checkpoint", "remove_ckpts"),
    "official_lite.run.best_checkpoint": (
        "BEST_CHECKPOINT_NAME",
        "BestCheckpointExporter",
        "maybe_create_best_ckpt_exporter",
    ),
    "official_lite.config.parsing": (
        "ExperimentParser",
        "ParseConfigOptions",
        "import_modules",
        "parse_configuration",
        "serialize_config",
        "to_yaml",
    ),
    "official_lite.run.continuous_finetune_lib": ("write_json_summary", "write_summary"),
    "official_lite.execution.execution_record": ("describe_execution",),
    "official_lite.config.gin_config": ("parse_gin_flags",),
    "official_lite.modeling.model_summary": (
        "try_count_flops",
        "try_count_params",
        "write_model_params",
    ),
    "official_lite.common.nested_dict": ("cast_leaf_nested_dict", "get_leaf_nested_dict"),
    "official_lite.run.run_record": ("check_model_dir", "is_finished", "save_gin_config"),
    "official_lite.core.trainer_factory": ("create_optimizer", "create_trainer"),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
