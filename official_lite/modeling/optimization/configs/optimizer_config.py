"""Configs of the optimizers; the fields are the arguments of the optimizer's constructor."""

import dataclasses

from official_lite.modeling.hyperparams import base_config

__all__ = [
    "BaseOptimizerConfig",
    "LazyRowsConfig",
    "SGDConfig",
    "SGDExperimentalConfig",
    "RMSPropConfig",
    "AdagradConfig",
    "AdamConfig",
    "AdamExperimentalConfig",
    "AdamWeightDecayConfig",
    "AdamWeightDecayExperimentalConfig",
    "LAMBConfig",
    "EMAConfig",
    "LARSConfig",
    "AdafactorConfig",
    "AdafactorKerasConfig",
    "LionConfig",
    "MuonConfig",
    "NadamConfig",
    "AdamaxConfig",
    "FtrlConfig",
]


@dataclasses.dataclass
class BaseOptimizerConfig(base_config.Config):
    """How gradients are clipped; at most one of the three may be set.

    Gradients are clipped after they were summed over the replicas.

    Attributes:
        clipnorm: Bound of each gradient's L2 norm.
        clipvalue: Bound of each element's absolute value.
        global_clipnorm: Bound of the L2 norm of all gradients together.
    """

    clipnorm: float | None = None
    clipvalue: float | None = None
    global_clipnorm: float | None = None


@dataclasses.dataclass
class LazyRowsConfig(BaseOptimizerConfig):
    """For optimizers that can update some rows of a table.

    Attributes:
        lazy_rows: Whether rows of an embedding that a step has not looked up stay as they are,
            where the optimizer would move them by momentum or let them decay. A step then costs
            the same whatever the size of the table. See docs/embeddings.md.
    """

    lazy_rows: bool = False


@dataclasses.dataclass
class SGDConfig(LazyRowsConfig):
    """Gradient descent, with momentum or without.

    Attributes:
        decay: Without effect; let the learning rate decay instead.
    """

    name: str = "SGD"
    decay: float = 0.0
    nesterov: bool = False
    momentum: float = 0.0


@dataclasses.dataclass
class SGDExperimentalConfig(LazyRowsConfig):
    """The same as `SGDConfig`, under its name of old.

    Attributes:
        jit_compile: Without effect.
    """

    name: str = "SGD"
    nesterov: bool = False
    momentum: float = 0.0
    jit_compile: bool = False


@dataclasses.dataclass
class RMSPropConfig(LazyRowsConfig):
    """RMSprop.

    Attributes:
        rho: Decay of the mean square.
        centered: Whether to divide by the standard deviation and not by the root mean square.
    """

    name: str = "RMSprop"
    rho: float = 0.9
    momentum: float = 0.0
    epsilon: float = 1e-7
    centered: bool = False


@dataclasses.dataclass
class AdagradConfig(LazyRowsConfig):
    """Adagrad."""

    name: str = "Adagrad"
    initial_accumulator_value: float = 0.1
    epsilon: float = 1e-07


@dataclasses.dataclass
class AdamConfig(LazyRowsConfig):
    """Adam.

    Attributes:
        beta_1: Decay of the first moment.
        beta_2: Decay of the second moment.
        amsgrad: Whether the second moment never shrinks.
    """

    name: str = "Adam"
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-07
    amsgrad: bool = False


@dataclasses.dataclass
class AdamExperimentalConfig(LazyRowsConfig):
    """The same as `AdamConfig`, under its name of old.

    Attributes:
        jit_compile: Without effect.
    """

    name: str = "Adam"
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-07
    amsgrad: bool = False
    jit_compile: bool = False


@dataclasses.dataclass
class AdamWeightDecayConfig(LazyRowsConfig):
    """Adam with decoupled weight decay; gradients are clipped unless you say otherwise.

    Attributes:
        weight_decay_rate: How much of itself a weight loses, times the learning rate.
        include_in_weight_decay: Patterns of variables that decay whatever the next list says.
        exclude_from_weight_decay: Patterns of variables that do not decay. A pattern is a regular
            expression that is looked for in the variable's path and name.
        gradient_clip_norm: Bound of the L2 norm of all gradients together, 1 by default; 0 is none.
    """

    name: str = "AdamWeightDecay"
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-07
    amsgrad: bool = False
    weight_decay_rate: float = 0.0
    include_in_weight_decay: list[str] | None = None
    exclude_from_weight_decay: list[str] | None = None
    gradient_clip_norm: float = 1.0


@dataclasses.dataclass
class AdamWeightDecayExperimentalConfig(LazyRowsConfig):
    """Keras' AdamW, with gradients clipped unless you say otherwise.

    Attributes:
        global_clipnorm: Bound of the L2 norm of all gradients together, 1 by default; None is none.
        jit_compile: Without effect.
    """

    name: str = "AdamWeightDecayExperimental"
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-07
    amsgrad: bool = False
    weight_decay: float = 0.0
    global_clipnorm: float | None = 1.0
    jit_compile: bool = False


@dataclasses.dataclass
class LAMBConfig(BaseOptimizerConfig):
    """LAMB: Adam whose step is as long as the layer's weights allow.

    Attributes:
        exclude_from_weight_decay: Patterns of variables without decay.
        exclude_from_layer_adaptation: Patterns of variables whose step is plain Adam's; those
            without decay if it is None.
    """

    name: str = "LAMB"
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-6
    weight_decay_rate: float = 0.0
    exclude_from_weight_decay: list[str] | None = None
    exclude_from_layer_adaptation: list[str] | None = None


@dataclasses.dataclass
class EMAConfig(BaseOptimizerConfig):
    """A moving average of the weights, which evaluation and the best checkpoint then use.

    The clip fields are here by inheritance only: set them on the optimizer.

    Attributes:
        trainable_weights_only: Whether to leave out such weights as the moving statistics of batch
            normalization.
        average_decay: How much of the average survives an update.
        start_step: The number of updates after which averaging starts.
        dynamic_decay: Whether the decay grows towards `average_decay` over the first updates.
    """

    name: str = "ExponentialMovingAverage"
    trainable_weights_only: bool = True
    average_decay: float = 0.99
    start_step: int = 0
    dynamic_decay: bool = True


@dataclasses.dataclass
class LARSConfig(BaseOptimizerConfig):
    """LARS: momentum whose step is as long as the layer's weights allow.

    Attributes:
        eeta: The coefficient of the ratio between the norms of weights and gradient.
        classic_momentum: Whether the learning rate goes into the momentum, as in the paper.
        exclude_from_weight_decay: Patterns of variables without decay.
        exclude_from_layer_adaptation: Patterns of variables whose learning rate is not scaled;
            those without decay if it is None.
    """

    name: str = "LARS"
    momentum: float = 0.9
    eeta: float = 0.001
    weight_decay_rate: float = 0.0
    nesterov: bool = False
    classic_momentum: bool = True
    exclude_from_weight_decay: list[str] | None = None
    exclude_from_layer_adaptation: list[str] | None = None


@dataclasses.dataclass
class AdafactorConfig(BaseOptimizerConfig):
    """Adafactor with an outside learning rate, in the words of its authors.

    Keras' Adafactor is what is built. It has `decay_rate` (for `beta_2_decay`),
    `clipping_threshold`, both epsilons and `weight_decay`; the other fields must keep their
    defaults.
    """

    name: str = "Adafactor"
    factored: bool = True
    multiply_by_parameter_scale: bool = True
    beta1: float | None = None
    decay_rate: float = 0.8
    step_offset: int = 0
    clipping_threshold: float = 1.0
    min_dim_size_to_factor: int = 128
    epsilon1: float = 1e-30
    epsilon2: float = 1e-3
    weight_decay: float | None = None
    include_in_weight_decay: str | None = None


@dataclasses.dataclass
class AdafactorKerasConfig(BaseOptimizerConfig):
    """Keras' Adafactor.

    Attributes:
        learning_rate: Without effect: the learning rate is that of `LrConfig`.
        relative_step: Whether a constant learning rate is bounded by `1 / sqrt(step)`.
    """

    name: str = "Adafactor"
    learning_rate: float = 0.001
    beta_2_decay: float = -0.8
    epsilon_1: float = 1e-30
    epsilon_2: float = 1e-3
    clip_threshold: float = 1.0
    relative_step: bool = True


@dataclasses.dataclass
class LionConfig(BaseOptimizerConfig):
    """Lion (https://arxiv.org/abs/2302.06675): steps of one size, in the momentum's direction."""

    name: str = "Lion"
    beta_1: float = 0.9
    beta_2: float = 0.99
    weight_decay: float | None = None


@dataclasses.dataclass
class MuonConfig(BaseOptimizerConfig):
    """Muon (https://arxiv.org/abs/2502.16982): orthogonal steps for matrices, AdamW for the rest.

    Attributes:
        exclude_layers: Patterns of paths whose matrices AdamW updates too: name the output layer.
        exclude_embeddings: Whether AdamW updates embeddings.
        adam_lr_ratio: AdamW's learning rate in proportion to Muon's.
        ns_steps: Newton-Schulz iterations for each step.
        rms_rate: Root mean square of the step; None leaves it as it is.
    """

    name: str = "Muon"
    momentum: float = 0.95
    nesterov: bool = True
    weight_decay: float | None = 0.004
    ns_steps: int = 5
    rms_rate: float | None = 0.2
    exclude_layers: list[str] | None = None
    exclude_embeddings: bool = True
    adam_beta_1: float = 0.9
    adam_beta_2: float = 0.999
    adam_weight_decay: float | None = 0.004
    adam_lr_ratio: float = 1.0
    epsilon: float = 1e-7


@dataclasses.dataclass
class NadamConfig(BaseOptimizerConfig):
    """Adam with Nesterov momentum."""

    name: str = "Nadam"
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    weight_decay: float | None = None


@dataclasses.dataclass
class AdamaxConfig(BaseOptimizerConfig):
    """Adam with the infinity norm in the place of the second moment."""

    name: str = "Adamax"
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    weight_decay: float | None = None


@dataclasses.dataclass
class FtrlConfig(BaseOptimizerConfig):
    """Follow the regularized leader, for sparse linear models."""

    name: str = "Ftrl"
    learning_rate_power: float = -0.5
    initial_accumulator_value: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    l2_shrinkage_regularization_strength: float = 0.0
    beta: float = 0.0
