"""The config classes of `task.compression`. Does not import TensorFlow."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from official_lite.common import errors
from official_lite.modeling import hyperparams
from official_lite.modeling.hyperparams import field_checks

__all__ = [
    "CENTROIDS",
    "FEATURE_LOSSES",
    "OUTPUT_LOSSES",
    "RANGES",
    "SCHEDULES",
    "ClusteringConfig",
    "CompressionConfig",
    "DistillationConfig",
    "FeatureLossConfig",
    "PruningConfig",
    "QuantizationConfig",
]

RANGES = ("moving_average", "min_max", "fixed")
SCHEDULES = ("polynomial", "constant", "existing_zeros")
CENTROIDS = ("linear", "density_based", "kmeans_plus_plus")
OUTPUT_LOSSES = ("kl", "mse")
FEATURE_LOSSES = ("mse", "attention")

_INIT_CHECKPOINT_HINT = "To start from the weights of another run, set `task.init_checkpoint`."

# The bits for which LiteRT has integer kernels.
_BITS = 8


@dataclasses.dataclass
class QuantizationConfig(hyperparams.Config):
    """The config of quantization-aware training.

    The fields for the numbers of bits have the names of the Model Garden's `qat` project.

    Attributes:
        num_bits_weight: The number of bits of a weight; only 8.
        num_bits_activation: The number of bits of an activation; only 8.
        per_channel: Whether each output channel of a convolution has its own scale. Dense layers
            always have one scale, because the converter of LiteRT accepts no other.
        ranges: How the range of an activation is found: `moving_average` follows the smallest and
            largest value of each training batch, `min_max` keeps the extremes of all batches,
            `fixed` uses `fixed_range` for all activations.
        moving_average_decay: The decay of the moving average.
        fixed_range: The smallest and largest activation, for `ranges: fixed`.
        include: Regular expressions; only layers whose path matches one are quantized. Empty for
            all layers. The path of a layer is its name, after the names of the models around it:
            `backbone/conv1`.
        exclude: Regular expressions; layers whose path matches one stay in floating point.
    """

    UNKNOWN_KEY_HINTS: ClassVar[Mapping[str, str]] = {
        "pretrained_original_checkpoint": (
            "To start from the weights of a float run, set `task.init_checkpoint`."
        ),
        "version": "There is one scheme of quantization; remove the field.",
        "change_num_bits": "`num_bits_weight` and `num_bits_activation` need no switch; remove it.",
        "quantize_detection_decoder": "Select layers with `include` and `exclude` instead.",
        "quantize_detection_head": "Select layers with `include` and `exclude` instead.",
    }

    num_bits_weight: int = _BITS
    num_bits_activation: int = _BITS
    per_channel: bool = True
    ranges: str = "moving_average"
    moving_average_decay: float = 0.99
    fixed_range: list[float] = dataclasses.field(default_factory=lambda: [-6.0, 6.0])
    include: list[str] = dataclasses.field(default_factory=list)
    exclude: list[str] = dataclasses.field(default_factory=list)

    def validate_fields(self) -> None:
        for name in ("num_bits_weight", "num_bits_activation"):
            if (value := getattr(self, name)) != _BITS:
                raise errors.ConfigValueError(
                    f"`{name}` is {value}; expected {_BITS}, the only size with integer kernels in "
                    "LiteRT."
                )
        field_checks.require_one_of(self, "ranges", RANGES)
        field_checks.require_patterns(self, "include", "exclude")
        if not 0 <= self.moving_average_decay < 1:
            raise errors.ConfigValueError(
                f"`moving_average_decay` is {self.moving_average_decay}; expected a number from 0 "
                "up to, but not including, 1."
            )
        if len(self.fixed_range) != 2 or not self.fixed_range[0] <= 0 < self.fixed_range[1]:
            raise errors.ConfigValueError(
                f"`fixed_range` is {self.fixed_range}; expected the smallest activation, at most "
                "0, and the largest, above 0."
            )


@dataclasses.dataclass
class PruningConfig(hyperparams.Config):
    """The config of magnitude pruning: the smallest weights of each kernel become zero.

    The fields of the schedule have the names of the Model Garden's pruning project. Between two
    updates of the masks, pruned weights stay exactly 0, whatever the optimizer is. So do the
    moving averages of the weights.

    Attributes:
        schedule: `polynomial` raises the sparsity from `initial_sparsity` to `final_sparsity`;
            `constant` prunes to `final_sparsity` at `begin_step`; `existing_zeros` prunes nothing
            more, and keeps the weights at 0 that are 0 when training starts, for example those of
            `task.init_checkpoint`.
        initial_sparsity: The share of zeros in each kernel at `begin_step`, for `polynomial`.
        final_sparsity: The share of zeros in each kernel from `end_step` on.
        begin_step: The step at which weights are pruned for the first time.
        end_step: The step at which `polynomial` reaches the final sparsity.
        frequency: The number of steps between two updates of the masks of `polynomial`.
        power: The exponent of `polynomial`.
        sparsity_m_by_n: `[m, n]` prunes only the `m` smallest of each `n` consecutive weights along
            the inputs of a layer: `[2, 4]` gives the pattern that sparse tensor cores require.
            `final_sparsity` must be `m / n`. Kernels whose number of inputs is not a multiple of
            `n` stay dense. Null prunes weights anywhere.
        include: Regular expressions; only the kernels of layers whose path matches one are pruned.
            Empty for all layers.
        exclude: Regular expressions; the kernels of layers whose path matches one stay dense.
    """

    UNKNOWN_KEY_HINTS: ClassVar[Mapping[str, str]] = {
        "pretrained_original_checkpoint": _INIT_CHECKPOINT_HINT,
        "pruning_schedule": (
            "Set `schedule` to `polynomial` for PolynomialDecay or `constant` for ConstantSparsity."
        ),
        "target_sparsity": "The field is called `final_sparsity`.",
    }

    schedule: str = "polynomial"
    initial_sparsity: float = 0.0
    final_sparsity: float = 0.5
    begin_step: int = 0
    end_step: int = 1000
    frequency: int = 100
    power: float = 3.0
    sparsity_m_by_n: list[int] | None = None
    include: list[str] = dataclasses.field(default_factory=list)
    exclude: list[str] = dataclasses.field(default_factory=list)

    def validate_fields(self) -> None:
        field_checks.require_one_of(self, "schedule", SCHEDULES)
        field_checks.require_not_negative(self, "begin_step")
        field_checks.require_positive(self, "frequency")
        field_checks.require_patterns(self, "include", "exclude")
        if not 0 <= self.initial_sparsity <= self.final_sparsity < 1:
            raise errors.ConfigValueError(
                f"`initial_sparsity` is {self.initial_sparsity} and `final_sparsity` is "
                f"{self.final_sparsity}; expected 0 <= initial <= final < 1."
            )
        if self.schedule == "polynomial" and self.end_step <= self.begin_step:
            raise errors.ConfigValueError(
                f"`end_step` is {self.end_step}; expected a step after `begin_step`, which is "
                f"{self.begin_step}."
            )
        if not self.power > 0:
            raise errors.ConfigValueError(f"`power` is {self.power}; expected a positive number.")
        if self.sparsity_m_by_n is not None and self.schedule != "existing_zeros":
            self._validate_blocks(self.sparsity_m_by_n)

    @property
    def last_step(self) -> int:
        """The last step at which the masks change."""
        if self.schedule == "existing_zeros":
            return 0
        return self.end_step if self.schedule == "polynomial" else self.begin_step

    def _validate_blocks(self, sparsity_m_by_n: list[int]) -> None:
        if len(sparsity_m_by_n) != 2 or not 0 < sparsity_m_by_n[0] < sparsity_m_by_n[1]:
            raise errors.ConfigValueError(
                f"`sparsity_m_by_n` is {sparsity_m_by_n}; expected the number of zeros and the "
                "size of a block, such as [2, 4]."
            )
        m, n = sparsity_m_by_n
        if abs(self.final_sparsity - m / n) > 1e-6:
            raise errors.ConfigValueError(
                f"`final_sparsity` is {self.final_sparsity}; expected {m / n:g}, the share of "
                f"zeros that `sparsity_m_by_n: {sparsity_m_by_n}` gives."
            )


@dataclasses.dataclass
class ClusteringConfig(hyperparams.Config):
    """The config of weight clustering: each kernel has only a few different values.

    At `begin_step`, k-means assigns each weight of a kernel to one of the clusters. From then on,
    only the centroids are trained: after each update of the optimizer, the weights of a cluster are
    replaced by their mean. Such kernels compress well; the 16 values of a kernel take 4 bits each.

    Attributes:
        number_of_clusters: The number of different values in a kernel, from 2 to 256.
        cluster_centroids_init: The first centroids of k-means: `linear` spaces them evenly between
            the smallest and the largest weight, `density_based` puts them at quantiles, and
            `kmeans_plus_plus` draws them far from one another, by the rule of Arthur and
            Vassilvitskii (2007).
        begin_step: The step at which the weights are clustered.
        preserve_sparsity: Whether weights that are 0 at `begin_step` form a cluster that stays 0.
        include: Regular expressions; only the kernels of layers whose path matches one are
            clustered. Empty for all layers.
        exclude: Regular expressions; the kernels of layers whose path matches one are not
            clustered.
    """

    number_of_clusters: int = 16
    cluster_centroids_init: str = "linear"
    begin_step: int = 0
    preserve_sparsity: bool = True
    include: list[str] = dataclasses.field(default_factory=list)
    exclude: list[str] = dataclasses.field(default_factory=list)

    def validate_fields(self) -> None:
        field_checks.require_one_of(self, "cluster_centroids_init", CENTROIDS)
        field_checks.require_not_negative(self, "begin_step")
        field_checks.require_patterns(self, "include", "exclude")
        if not 2 <= self.number_of_clusters <= 256:
            raise errors.ConfigValueError(
                f"`number_of_clusters` is {self.number_of_clusters}; expected 2 to 256."
            )


@dataclasses.dataclass
class FeatureLossConfig(hyperparams.Config):
    """The config of a loss between the outputs of a layer of the student and one of the teacher.

    Attributes:
        student_layer: The name or path of a layer of the model that is trained.
        teacher_layer: The name or path of a layer of the teacher; empty for the same name.
        loss: `mse`, the mean squared error of outputs of the same shape; or `attention`, the mean
            squared error of normalized maps of activity, which allows different numbers of channels
            (Zagoruyko and Komodakis, 2017).
        weight: The weight of the loss.
    """

    student_layer: str = ""
    teacher_layer: str = ""
    loss: str = "mse"
    weight: float = 1.0

    def validate_fields(self) -> None:
        field_checks.require_one_of(self, "loss", FEATURE_LOSSES)
        if not self.student_layer:
            raise errors.ConfigValueError("`student_layer` is empty; expected the name of a layer.")
        if not self.weight > 0:
            raise errors.ConfigValueError(f"`weight` is {self.weight}; expected a positive number.")


@dataclasses.dataclass
class DistillationConfig(hyperparams.Config):
    """The config of distillation: a model learns from the outputs of a trained one.

    The loss of training is `(1 - alpha) * loss of the task + alpha * temperature² * loss of the
    outputs + losses of the features` (Hinton, Vinyals and Dean, 2015). Evaluations report the loss
    of the task only.

    Attributes:
        teacher: The model directory of another run, or a checkpoint in it. The teacher is rebuilt
            from the `params.yaml` of that run, and has the weights that an evaluation would have.
        experiment: The experiment of that run, if its `run.json` does not name it.
        temperature: The number by which the logits are divided before the softmax.
        alpha: The weight of the loss between the outputs of student and teacher, from 0 to 1.
        loss: The loss between the outputs: `kl`, the Kullback-Leibler divergence of class
            probabilities; or `mse`, the mean squared error, for a regression. The temperature
            applies only to `kl`.
        from_logits: Whether the outputs are logits; false if the models end in a softmax.
        output: The name of the output to compare, for models whose outputs are a dictionary.
        features: The losses between layers.
    """

    teacher: str = ""
    experiment: str = ""
    temperature: float = 4.0
    alpha: float = 0.5
    loss: str = "kl"
    from_logits: bool = True
    output: str = ""
    features: list[FeatureLossConfig] = dataclasses.field(default_factory=list)

    def validate_fields(self) -> None:
        field_checks.require_one_of(self, "loss", OUTPUT_LOSSES)
        if not self.teacher:
            raise errors.ConfigValueError(
                "`teacher` is empty; expected the model directory of a run, or a checkpoint in it."
            )
        if not self.temperature > 0:
            raise errors.ConfigValueError(
                f"`temperature` is {self.temperature}; expected a positive number."
            )
        if not 0 <= self.alpha <= 1:
            raise errors.ConfigValueError(f"`alpha` is {self.alpha}; expected 0 to 1.")
        if not self.alpha and not self.features:
            raise errors.ConfigValueError(
                "`alpha` is 0 and `features` is empty, so nothing would be learned from the "
                "teacher."
            )


@dataclasses.dataclass
class CompressionConfig(hyperparams.Config):
    """The config of the compression of a model.

    Attributes:
        quantization: Training with the rounding errors of 8-bit integers.
        pruning: Setting the smallest weights to 0; see docs/how_to/prune.md.
        clustering: Sharing a few values among the weights of a kernel; see docs/how_to/prune.md.
        distillation: Learning from a trained model; see docs/how_to/distill.md.
    """

    quantization: QuantizationConfig | None = None
    pruning: PruningConfig | None = None
    clustering: ClusteringConfig | None = None
    distillation: DistillationConfig | None = None

    def validate_fields(self) -> None:
        if self.pruning is None or self.clustering is None:
            return
        if not self.clustering.preserve_sparsity:
            raise errors.ConfigValueError(
                "`clustering.preserve_sparsity` is false, but `pruning` is set, whose zeros would "
                "be lost. Set it to true."
            )
        last = self.pruning.last_step
        if self.clustering.begin_step < last:
            raise errors.ConfigValueError(
                f"`clustering.begin_step` is {self.clustering.begin_step}, but weights are pruned "
                f"until step {last}; expected that step or a later one."
            )
