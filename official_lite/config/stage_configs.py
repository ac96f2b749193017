"""The config of the stages of a run, which also accepts PaddleRec's names."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from official_lite.modeling import hyperparams

__all__ = ["HINTS_FOR_PADDLEREC", "PipelineConfig"]

# What to use for keys of PaddleRec's configs that have no counterpart of one name.
HINTS_FOR_PADDLEREC = {
    "runner": (
        "PaddleRec's `runner` has several counterparts: the classes of its stages are named under "
        "`pipeline`, several runners are `phases`, and docs/stages.md lists the other keys."
    ),
}


@dataclasses.dataclass
class PipelineConfig(hyperparams.Config):
    """The config of the stages of a run.

    Each stage is a registered name, `package.module:Class` or `{workspace}/file.py:Class`; an empty
    value selects the default stage. PaddleRec's names of the stages are accepted, too: instance,
    network, startup, runner and terminal, each also with the suffix `_class_path`.

    Attributes:
        prepare: Runs before anything is built: downloads, environment variables.
        build: Builds the strategy, task, model, optimizer and trainer.
        initialize: Restores the run's checkpoint, or loads `task.init_checkpoint`.
        run: Trains and evaluates.
        finalize: Cleans up, even after a failure.
    """

    ALIASES: ClassVar[Mapping[str, str]] = {
        alias + ending: field
        for alias, field in {
            "instance": "prepare",
            "network": "build",
            "startup": "initialize",
            "runner": "run",
            "terminal": "finalize",
        }.items()
        for ending in ("", "_class_path")
    }

    prepare: str = ""
    build: str = ""
    initialize: str = ""
    run: str = ""
    finalize: str = ""
