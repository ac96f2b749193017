"""The configs of runs with several tasks. Nothing in this module needs TensorFlow."""

import collections
import dataclasses

from official_lite.common import errors, suggestions
from official_lite.core import config_definitions as cfg
from official_lite.modeling import hyperparams

__all__ = [
    "AnnealingSampleConfig",
    "MultiEvalExperimentConfig",
    "MultiTaskConfig",
    "MultiTaskExperimentConfig",
    "MultiTaskTrainerConfig",
    "ProportionalSampleConfig",
    "TaskRoutine",
    "TaskSamplingConfig",
]

TRAINER_TYPES = ("interleaving", "joint")


@dataclasses.dataclass
class TaskRoutine(hyperparams.Config):
    """One of the tasks, and what part it has in the whole.

    Attributes:
        task_name: Its name in logs and in the model's `sub_tasks`; empty for `task_config.name`.
        task_config: The task's own config.
        eval_steps: Batches in an evaluation of this task; None for `trainer.validation_steps`.
        task_weight: The factor of its loss in joint training, and its weight for the sampler in
            interleaved training; None is 1.
    """

    task_name: str = ""
    task_config: cfg.TaskConfig | None = None
    eval_steps: int | None = None
    task_weight: float | None = 1.0

    @property
    def resolved_name(self) -> str:
        """The name by which the task goes.

        Raises:
            errors.ConfigValueError: It has none.
        """
        name = self.task_name or getattr(self.task_config, "name", None)
        if not name:
            raise errors.ConfigValueError(
                "A task routine has no name. Set its `task_name`, or `task_config.name`."
            )
        return name

    def validate_fields(self) -> None:
        if self.task_config is None:
            raise errors.ConfigValueError("`task_config` is None; wanted the config of a task.")
        if self.task_weight is not None and not self.task_weight >= 0:
            raise errors.ConfigValueError(
                f"`task_weight` is {self.task_weight}; wanted 0 or a positive number."
            )
        if self.eval_steps is not None and self.eval_steps != -1 and self.eval_steps < 1:
            raise errors.ConfigValueError(
                f"`eval_steps` is {self.eval_steps}; wanted a number of batches, -1 for the whole "
                "validation data, or None for `trainer.validation_steps`."
            )


@dataclasses.dataclass
class MultiTaskConfig(hyperparams.Config):
    """Tasks that are trained together.

    Attributes:
        init_checkpoint: For the model's `initialize` to load; nothing else reads it.
        model: The model's own config.
        task_routines: The tasks, in the order in which the sampler counts them.
        differential_privacy_config: Accepted from Model Garden files, with a warning.
    """

    init_checkpoint: str = ""
    model: hyperparams.Config | None = None
    task_routines: tuple[TaskRoutine, ...] = ()
    differential_privacy_config: hyperparams.Config | None = None

    def validate_fields(self) -> None:
        _require_distinct_names(self.task_routines)


@dataclasses.dataclass
class ProportionalSampleConfig(hyperparams.Config):
    """Tasks are drawn in proportion to `weight ** alpha`: 1 by weight, 0 all alike."""

    alpha: float = 1.0


@dataclasses.dataclass
class AnnealingSampleConfig(hyperparams.Config):
    """As proportional, with an `alpha` that falls from 1 in the first epoch to 0.2 in the last.

    Attributes:
        steps_per_epoch: Steps, of all tasks together, that make an epoch.
        total_steps: Steps after which `alpha` falls no further.
    """

    steps_per_epoch: int = 5
    total_steps: int = 20

    def validate_fields(self) -> None:
        for name in ("steps_per_epoch", "total_steps"):
            if getattr(self, name) < 1:
                raise errors.ConfigValueError(
                    f"`{name}` is {getattr(self, name)}; wanted a positive number."
                )


@dataclasses.dataclass
class TaskSamplingConfig(hyperparams.OneOfConfig):
    """How the task of a step is drawn: `uniform`, `proportional` or `annealing`."""

    type: str = ""
    uniform: hyperparams.Config = dataclasses.field(default_factory=hyperparams.Config)
    proportional: ProportionalSampleConfig = dataclasses.field(
        default_factory=ProportionalSampleConfig
    )
    annealing: AnnealingSampleConfig = dataclasses.field(default_factory=AnnealingSampleConfig)


@dataclasses.dataclass
class MultiTaskTrainerConfig(cfg.TrainerConfig):
    """As `TrainerConfig`, for several tasks.

    Attributes:
        trainer_type: `interleaving` trains one task in each step, `joint` all of them.
        task_sampler: Which one, when interleaving.
    """

    trainer_type: str = "interleaving"
    task_sampler: TaskSamplingConfig = dataclasses.field(
        default_factory=lambda: TaskSamplingConfig(type="proportional")
    )

    def validate_fields(self) -> None:
        super().validate_fields()
        if self.trainer_type not in TRAINER_TYPES:
            raise errors.ConfigValueError(
                f"`trainer_type` is {self.trainer_type!r}. "
                f"{suggestions.did_you_mean(self.trainer_type, TRAINER_TYPES)}"
            )
        if self.grad_accum_steps != 1:
            raise errors.ConfigValueError(
                f"`grad_accum_steps` is {self.grad_accum_steps}; with several tasks there is no "
                "accumulation. Set it to 1."
            )
        if self.overfit_batches:
            raise errors.ConfigValueError(
                f"`overfit_batches` is {self.overfit_batches}, which is for experiments with one "
                "task. Set it to 0."
            )


@dataclasses.dataclass
class MultiTaskExperimentConfig(cfg.ExperimentConfig):
    """One experiment: several tasks, trained and evaluated together."""

    # An `ExperimentConfig` wherever one is asked for, though its tasks are several: another type.
    task: MultiTaskConfig = dataclasses.field(  # type: ignore[assignment]
        default_factory=MultiTaskConfig
    )
    trainer: MultiTaskTrainerConfig = dataclasses.field(default_factory=MultiTaskTrainerConfig)
    runtime: cfg.RuntimeConfig = dataclasses.field(default_factory=cfg.RuntimeConfig)


@dataclasses.dataclass
class MultiEvalExperimentConfig(cfg.ExperimentConfig):
    """One experiment: a task that is trained, evaluated on several.

    Attributes:
        eval_tasks: The tasks of each evaluation; their weights mean nothing.
    """

    eval_tasks: tuple[TaskRoutine, ...] = ()

    def validate_fields(self) -> None:
        super().validate_fields()
        _require_distinct_names(self.eval_tasks)


def _require_distinct_names(routines: tuple[TaskRoutine, ...]) -> None:
    counts = collections.Counter(routine.resolved_name for routine in routines)
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise errors.ConfigValueError(
            f"More than one task routine is named {', '.join(map(repr, twice))}. Give each a "
            "`task_name` of its own."
        )
