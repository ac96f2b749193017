"""Configs of architecture search. Nothing here needs TensorFlow.

An experiment that searches has a `OneShotTrainerConfig` for its trainer, and names one of the
trainers: `trainer.name: darts`. Its task takes the result, `task.arch`, to train it by itself.
"""

import dataclasses

from official_lite.common import errors
from official_lite.core import config_definitions as cfg
from official_lite.core import field_checks
from official_lite.modeling import hyperparams

__all__ = [
    "ArchTaskConfig",
    "DartsConfig",
    "EnasConfig",
    "GumbelConfig",
    "OneShotConfig",
    "OneShotTrainerConfig",
    "PenaltyConfig",
    "SposConfig",
]


@dataclasses.dataclass
class DartsConfig(hyperparams.Config):
    """Of the trainer `darts`.

    Attributes:
        order: How the gradient of the architecture takes into account that the weights follow it:
            `first` not at all; `second` exactly, through a step of the weights; and
            `finite_difference` is the paper's estimate of the latter, for layers that have no
            second derivative.
        unrolled_learning_rate: Length of that step, ξ in the paper.
    """

    order: str = "first"
    unrolled_learning_rate: float = 0.025

    def validate_fields(self) -> None:
        field_checks.require_one_of(self, "order", ("first", "second", "finite_difference"))
        field_checks.require_not_negative(self, "unrolled_learning_rate")


@dataclasses.dataclass
class GumbelConfig(hyperparams.Config):
    """Of the trainer `gumbel`.

    Attributes:
        hard: Whether a step computes with one candidate of each choice (GDAS), or with a mixture
            of all that comes near to one as the temperature falls (FBNet, SNAS).
        temperature: At the beginning.
        final_temperature: At the last step; in between it falls in a line.
    """

    hard: bool = False
    temperature: float = 5.0
    final_temperature: float = 0.5

    def validate_fields(self) -> None:
        field_checks.require_positive_or_none(self, "temperature", "final_temperature")


@dataclasses.dataclass
class EnasConfig(hyperparams.Config):
    """Of the trainer `enas`.

    Attributes:
        controller_every: Steps between two updates of the controller.
        samples: Architectures that such an update tries, each on the batch of its step.
        baseline_decay: Of the moving average that rewards are compared with.
        entropy_weight: How much an undecided controller is preferred.
        controller: `logits` decides each label for itself; `lstm` each by those before it.
        lstm_units: Of the latter.
        tanh_constant: The largest of its logits.
        skip_weight: How much it counts that an `InputChoice` of any number of inputs takes
            `skip_target` of them; 0 is not at all.
        skip_target: A share, 0 to 1.
    """

    controller_every: int = 1
    samples: int = 1
    baseline_decay: float = 0.95
    entropy_weight: float = 1e-4
    controller: str = "logits"
    lstm_units: int = 64
    tanh_constant: float = 1.5
    skip_weight: float = 0.0
    skip_target: float = 0.4

    def validate_fields(self) -> None:
        field_checks.require_positive(self, "controller_every", "samples", "lstm_units")
        field_checks.require_positive_or_none(self, "tanh_constant")
        field_checks.require_not_negative(self, "skip_weight")
        field_checks.require_one_of(self, "controller", ("logits", "lstm"))
        if not 0.0 < self.skip_target < 1.0:
            raise errors.ConfigValueError(
                f"`skip_target` is {self.skip_target}; wanted a share between 0 and 1."
            )


@dataclasses.dataclass
class SposConfig(hyperparams.Config):
    """Of the trainer `spos`.

    Attributes:
        rank_batches: Batches of the architecture's data that each architecture is rated by.
        calibration_batches: Batches of training data that give batch normalization the statistics
            of the architecture that is rated; 0 takes those of the whole model. A model without
            batch normalization needs none.
        max_exhaustive: Spaces up to this size are ranked whole, larger ones by evolution.
        population: Architectures in a generation.
        generations: How many generations there are.
    """

    rank_batches: int = 4
    calibration_batches: int = 4
    max_exhaustive: int = 512
    population: int = 50
    generations: int = 20

    def validate_fields(self) -> None:
        field_checks.require_positive(self, "rank_batches", "population", "generations")
        field_checks.require_not_negative(self, "calibration_batches", "max_exhaustive")


@dataclasses.dataclass
class PenaltyConfig(hyperparams.Config):
    """What an architecture costs beside its loss.

    Attributes:
        weight: How much the cost counts; 0 is not at all. It is added to the loss of the
            architecture, and taken from rewards.
        resource: `parameters`, `flops` or `table`.
        table: With `table`, the cost of each option by label: `{conv1: {conv3: 2.0, skip: 0.0}}`.
        unit: What the costs are divided by; 0 is the cost of the most expensive architecture.
    """

    weight: float = 0.0
    resource: str = "parameters"
    table: hyperparams.FreeConfig = dataclasses.field(default_factory=hyperparams.FreeConfig)
    unit: float = 0.0

    def validate_fields(self) -> None:
        field_checks.require_one_of(self, "resource", ("parameters", "flops", "table"))
        field_checks.require_not_negative(self, "weight", "unit")


@dataclasses.dataclass
class OneShotConfig(hyperparams.Config):
    """How a trainer searches in one training.

    Attributes:
        arch_data: The data that architectures are judged by, as a `DataConfig` for the task's
            `build_inputs`. Without it the training data are divided: one half trains the weights,
            the other judges.
        arch_learning_rate: Of Adam, for what describes the architecture.
        arch_beta_1, arch_beta_2: Its decays.
        arch_weight_decay: Draws the numbers that describe the architecture to 0.
        warmup_steps: Steps at the beginning in which only the weights are trained.
        reward: The metric that `enas` and `spos` go by; empty is the task's loss.
        reward_direction: `maximize` or `minimize`, for a metric.
        idle_paths: What happens in a step to the weights of candidates that it does not use:
            `update` lets momentum and weight decay move them, `freeze` leaves them alone.
        penalty: The cost of an architecture.
        darts, gumbel, enas, spos: Of the trainer of that name.
    """

    arch_data: cfg.DataConfig | None = None
    arch_learning_rate: float = 3e-4
    arch_beta_1: float = 0.5
    arch_beta_2: float = 0.999
    arch_weight_decay: float = 1e-3
    warmup_steps: int = 0
    reward: str = ""
    reward_direction: str = "maximize"
    idle_paths: str = "update"
    penalty: PenaltyConfig = dataclasses.field(default_factory=PenaltyConfig)
    darts: DartsConfig = dataclasses.field(default_factory=DartsConfig)
    gumbel: GumbelConfig = dataclasses.field(default_factory=GumbelConfig)
    enas: EnasConfig = dataclasses.field(default_factory=EnasConfig)
    spos: SposConfig = dataclasses.field(default_factory=SposConfig)

    def validate_fields(self) -> None:
        field_checks.require_not_negative(
            self, "arch_learning_rate", "arch_weight_decay", "warmup_steps"
        )
        field_checks.require_one_of(self, "reward_direction", ("maximize", "minimize"))
        field_checks.require_one_of(self, "idle_paths", ("update", "freeze"))


@dataclasses.dataclass
class OneShotTrainerConfig(cfg.TrainerConfig):
    """A trainer's config, and how it searches.

    Attributes:
        one_shot: Read by the trainers `darts`, `gumbel`, `proxyless`, `enas` and `spos`.
    """

    one_shot: OneShotConfig = dataclasses.field(default_factory=OneShotConfig)


@dataclasses.dataclass
class ArchTaskConfig(cfg.TaskConfig):
    """A task whose model has choices. Its `build_model` works within `nas.fixed_arch(config.arch)`.

    Attributes:
        arch: The architecture that is trained: the `arch.json` of a search, the directory with it,
            or a choice for each label. Empty leaves the choices open, for a trainer that searches.
    """

    arch: str | hyperparams.FreeConfig = ""

    def validate_fields(self) -> None:
        super().validate_fields()
        if not isinstance(self.arch, str) and not self.arch.as_dict():
            raise errors.ConfigValueError(
                "`arch` is an empty mapping; wanted a choice for each label, or a path."
            )
