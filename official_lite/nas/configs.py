"""Configs of architecture search. This module does not import TensorFlow.

An experiment that searches uses a `OneShotTrainerConfig` for its trainer and names one of the
search trainers, such as `trainer.name: darts`. To train the resulting architecture on its own, set
`task.arch`.
"""

import dataclasses
from typing import Any

from official_lite.common import errors, files
from official_lite.core import config_definitions as cfg
from official_lite.modeling import hyperparams
from official_lite.modeling.hyperparams import field_checks
from official_lite.nas import architecture

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
    """The config of the trainer `darts`.

    Attributes:
        order: How the gradient of the architecture accounts for the weights' dependence on the
            architecture. `first` ignores it. `second` differentiates exactly through one step of
            the weights. `finite_difference` uses the paper's estimate of `second`, which also works
            for layers without second derivatives.
        unrolled_learning_rate: Learning rate of the unrolled step of the weights, ξ in the paper.
    """

    order: str = "first"
    unrolled_learning_rate: float = 0.025

    def validate_fields(self) -> None:
        field_checks.require_one_of(self, "order", ("first", "second", "finite_difference"))
        field_checks.require_not_negative(self, "unrolled_learning_rate")


@dataclasses.dataclass
class GumbelConfig(hyperparams.Config):
    """The config of the trainer `gumbel`.

    Attributes:
        hard: Whether the output of a choice is a single candidate (GDAS). If False, it is a mixture
            of all candidates that approaches a single one as the temperature falls (FBNet, SNAS).
        temperature: The temperature at the first step.
        final_temperature: The temperature at the last step. It falls linearly in between.
    """

    hard: bool = False
    temperature: float = 5.0
    final_temperature: float = 0.5

    def validate_fields(self) -> None:
        field_checks.require_positive_or_none(self, "temperature", "final_temperature")


@dataclasses.dataclass
class EnasConfig(hyperparams.Config):
    """The config of the trainer `enas`.

    Attributes:
        controller_every: Number of steps between two updates of the controller.
        samples: Number of architectures that an update samples and rates, each on the batch of the
            step.
        baseline_decay: Decay of the moving average of rewards that serves as the baseline.
        entropy_weight: Weight of the entropy bonus, which favors an undecided controller.
        controller: `logits` decides each label independently; `lstm` decides each label depending
            on the labels before it.
        lstm_units: Number of units of the `lstm` controller.
        tanh_constant: Largest absolute logit of the `lstm` controller.
        skip_weight: Weight of the penalty that makes each `InputChoice` with `n_chosen=None` select
            the share `skip_target` of its inputs; 0 disables the penalty.
        skip_target: The desired share of inputs, between 0 and 1.
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
                f"`skip_target` is {self.skip_target}; expected a fraction between 0 and 1."
            )


@dataclasses.dataclass
class SposConfig(hyperparams.Config):
    """The config of the trainer `spos`.

    Attributes:
        rank_batches: Number of batches of the architecture data on which each architecture is
            rated.
        calibration_batches: Number of training batches that recompute the batch normalization
            statistics for each rated architecture. With 0, the statistics of the whole model are
            used. Models without batch normalization ignore this field.
        max_exhaustive: Spaces up to this size are ranked exhaustively, larger ones by evolution.
        population: Number of architectures in a generation.
        generations: Number of generations.
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
    """The resource cost of an architecture, in addition to its loss.

    Attributes:
        weight: Weight of the cost; 0 disables it. The weighted cost is added to the loss of the
            architecture or subtracted from its reward.
        resource: The resource to count: `parameters`, `flops` or `table`.
        table: For `resource: table`, the cost of each option by label, such as
            `{conv1: {conv3: 2.0, skip: 0.0}}`.
        unit: Divisor of the costs; 0 means the cost of the most expensive architecture.
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
    """The config of a search within a single training run.

    Attributes:
        arch_data: The data on which architectures are judged, as a `DataConfig` for the task's
            `build_inputs`. Without it the training data are split: one half trains the weights, the
            other half judges the architecture.
        arch_learning_rate: Learning rate of the Adam optimizer for the architecture parameters.
        arch_beta_1, arch_beta_2: Decay rates of that optimizer.
        arch_weight_decay: Weight decay of the architecture parameters.
        warmup_steps: Number of initial steps in which only the weights are trained.
        reward: The metric that `enas` and `spos` optimize; empty means the task's loss.
        reward_direction: `maximize` or `minimize`; used only with a metric. If it is empty, the
            name of the metric decides: `minimize` for a loss or an error, else `maximize`.
        idle_paths: How a step treats the weights of candidates that it does not use. `update` lets
            momentum and weight decay change them; `freeze` keeps them unchanged.
        penalty: The resource cost of an architecture.
        darts, gumbel, enas, spos: The config of the trainer of that name.
    """

    arch_data: cfg.DataConfig | None = None
    arch_learning_rate: float = 3e-4
    arch_beta_1: float = 0.5
    arch_beta_2: float = 0.999
    arch_weight_decay: float = 1e-3
    warmup_steps: int = 0
    reward: str = ""
    reward_direction: str = ""
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
        field_checks.require_one_of(self, "reward_direction", ("", "maximize", "minimize"))
        field_checks.require_one_of(self, "idle_paths", ("update", "freeze"))


@dataclasses.dataclass
class OneShotTrainerConfig(cfg.TrainerConfig):
    """A trainer config with the fields of an architecture search.

    Attributes:
        one_shot: The config of the trainers `darts`, `gumbel`, `proxyless`, `enas` and `spos`.
    """

    one_shot: OneShotConfig = dataclasses.field(default_factory=OneShotConfig)


@dataclasses.dataclass
class ArchTaskConfig(cfg.TaskConfig):
    """The config of a task whose model has choices.

    The task's `build_model` must build the model within `nas.fixed_arch(config.arch)`.

    Attributes:
        arch: The architecture to train: the `arch.json` of a search, the directory that contains
            it, or the chosen option of each label. A run records the options, also if a file was
            given. Empty leaves the choices open, as required by trainers that search.
    """

    arch: str | hyperparams.FreeConfig = ""

    def read_model_files(self) -> dict[str, Any]:
        found = super().read_model_files()
        path = self.arch if isinstance(self.arch, str) else ""
        is_there = bool(path) and files.exists(architecture.file_of(path))
        # Ignore an empty architecture, which would not fix any choice of a model.
        if is_there and (arch := architecture.read_arch(path)):
            found["arch"] = arch
        return found

    def validate_fields(self) -> None:
        super().validate_fields()
        if not isinstance(self.arch, str) and not self.arch.as_dict():
            raise errors.ConfigValueError(
                "`arch` is an empty mapping; expected a choice for each label, or a path."
            )
