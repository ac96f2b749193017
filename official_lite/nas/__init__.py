"""Neural architecture search: models with choices, and trainers that select the best options.

::

    def build_model(self):  # of a task whose config is a `nas.ArchTaskConfig`
        with nas.fixed_arch(self.task_config.arch):
            inputs = keras.Input((8, 8, 1))
            x = nas.LayerChoice(
                {"conv3": lambda: keras.layers.Conv2D(16, 3, padding="same"),
                 "conv1": lambda: keras.layers.Conv2D(16, 1)},
                label="conv",
            )(inputs)
            ...

    train.py --experiment=nas/digits --set=trainer.name=darts --model_dir=/tmp/search
    train.py --experiment=nas/digits --set=task.arch=/tmp/search --model_dir=/tmp/found

The trainers `darts`, `gumbel`, `proxyless`, `enas` and `spos` search within a single training and
work with any task. This package imports its configs eagerly; names that need TensorFlow are
imported on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from official_lite.nas.architecture import fixed_arch, read_arch, record_space, write_arch
from official_lite.nas.configs import (
    ArchTaskConfig,
    DartsConfig,
    EnasConfig,
    GumbelConfig,
    OneShotConfig,
    OneShotTrainerConfig,
    PenaltyConfig,
    SposConfig,
)

if TYPE_CHECKING:
    from official_lite.nas.cell import Cell
    from official_lite.nas.choices import Choice, LayerChoice, Repeat, ValueChoice
    from official_lite.nas.darts import DartsTrainer
    from official_lite.nas.enas import EnasTrainer
    from official_lite.nas.export_arch import ExportArch
    from official_lite.nas.found_model import fixed_model, inherit_weights
    from official_lite.nas.gumbel import GumbelTrainer
    from official_lite.nas.input_choice import InputChoice
    from official_lite.nas.one_shot_trainer import OneShotTrainer
    from official_lite.nas.proxyless import ProxylessTrainer
    from official_lite.nas.resolution import (
        replace_input_choice,
        replace_layer_choice,
        resolve_choices,
        space_of,
    )
    from official_lite.nas.spos import SposTrainer

__all__ = [
    "ArchTaskConfig",
    "Cell",
    "Choice",
    "DartsConfig",
    "DartsTrainer",
    "EnasConfig",
    "EnasTrainer",
    "ExportArch",
    "GumbelConfig",
    "GumbelTrainer",
    "InputChoice",
    "LayerChoice",
    "OneShotConfig",
    "OneShotTrainer",
    "OneShotTrainerConfig",
    "PenaltyConfig",
    "ProxylessTrainer",
    "Repeat",
    "SposConfig",
    "SposTrainer",
    "ValueChoice",
    "fixed_arch",
    "fixed_model",
    "inherit_weights",
    "read_arch",
    "record_space",
    "replace_input_choice",
    "replace_layer_choice",
    "resolve_choices",
    "space_of",
    "write_arch",
]

_MODULE_OF = {
    name: f"official_lite.nas.{module}"
    for module, names in {
        "cell": ("Cell",),
        "choices": ("Choice", "LayerChoice", "Repeat", "ValueChoice"),
        "darts": ("DartsTrainer",),
        "enas": ("EnasTrainer",),
        "export_arch": ("ExportArch",),
        "found_model": ("fixed_model", "inherit_weights"),
        "gumbel": ("GumbelTrainer",),
        "input_choice": ("InputChoice",),
        "one_shot_trainer": ("OneShotTrainer",),
        "proxyless": ("ProxylessTrainer",),
        "resolution": (
            "replace_input_choice",
            "replace_layer_choice",
            "resolve_choices",
            "space_of",
        ),
        "spos": ("SposTrainer",),
    }.items()
    for name in names
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Cache the object. Otherwise a submodule of the same name would be found first from now on.
    found = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
