"""Configs of the optimizers; their fields are the arguments of the optimizer's constructor."""

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
    "AdadeltaConfig",
    "ScheduleFreeAdamWConfig",
]


@dataclasses.dataclass
class BaseOptimizerConfig(base_config.Config):
    """Gradient clipping settings; at most one of the three may be set.

    Gradients are clipped after they are summed over the replicas.

    Attributes:
        clipnorm: The maximum L2 norm of each gradient.
        clipvalue: The maximum absolute value of each element.
        global_clipnorm: The maximum L2 norm of all gradients together.
    """

    clipnorm: float | None = None
    clipvalue: float | None = None
    global_clipnorm: float | None = None


@dataclasses.dataclass
class LazyRowsConfig(BaseOptimizerConfig):
    """Base config of optimizers that can update individual rows of an embedding table.

    Attributes:
        lazy_rows: Whether embedding rows that a step did not look up stay unchanged. If False, the
            optimizer moves them by momentum or weight decay. If True, the cost of a step does not
            depend on the size of the table. See docs/embeddings.md.
    """

    lazy_rows: bool = False


@dataclasses.dataclass
class SGDConfig(LazyRowsConfig):
    """Gradient descent, with or without momentum.

    Attributes:
        decay: If not 0, the learning rate is divided by `1 + decay * step`.
    """

    name: str = "SGD"
    decay: float = 0.0
    nesterov: bool = False
    momentum: float = 0.0


@dataclasses.dataclass
class SGDExperimentalConfig(LazyRowsConfig):
    """Same as `SGDConfig`, under its former name.

    Attributes:
        jit_compile: Has no effect.
    """

    name: str = "SGD"
    nesterov: bool = False
    momentum: float = 0.0
    jit_compile: bool = False


@dataclasses.dataclass
class RMSPropConfig(LazyRowsConfig):
    """RMSprop.

    Attributes:
        rho: The decay of the mean square.
        centered: Whether to divide by the standard deviation instead of the root mean square.
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
        beta_1: The decay of the first moment.
        beta_2: The decay of the second moment.
        amsgrad: Whether to use the maximum of all second moments so far.
    """

    name: str = "Adam"
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-07
    amsgrad: bool = False


@dataclasses.dataclass
class AdamExperimentalConfig(AdamConfig):
    """Same as `AdamConfig`, under its former name.

    Attributes:
        jit_compile: Has no effect.
    """

    jit_compile: bool = False


@dataclasses.dataclass
class AdamWeightDecayConfig(LazyRowsConfig):
    """Adam with decoupled weight decay; gradients are clipped by default.

    Attributes:
        weight_decay_rate: The fraction of a weight to subtract, before multiplying by the learning
            rate.
        include_in_weight_decay: A pattern of variables that always decay, or a list of patterns;
            they take precedence over `exclude_from_weight_decay`.
        exclude_from_weight_decay: Patterns of variables that do not decay. A pattern is a regular
            expression that is searched for in the variable's path and name.
        gradient_clip_norm: The maximum L2 norm of all gradients together; 1 by default, 0 disables
            clipping.
    """

    name: str = "AdamWeightDecay"
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-07
    amsgrad: bool = False
    weight_decay_rate: float = 0.0
    include_in_weight_decay: list[str] | str | None = None
    exclude_from_weight_decay: list[str] | str | None = None
    gradient_clip_norm: float = 1.0


@dataclasses.dataclass
class AdamWeightDecayExperimentalConfig(LazyRowsConfig):
    """Keras' AdamW; gradients are clipped by default.

    Attributes:
        global_clipnorm: The maximum L2 norm of all gradients together; 1 by default, None disables
            clipping.
        jit_compile: Has no effect.
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
    """LAMB: Adam with a step size proportional to the norm of the layer's weights.

    Attributes:
        exclude_from_weight_decay: Patterns of variables without weight decay.
        exclude_from_layer_adaptation: Patterns of variables that use Adam's step unscaled. If empty
            or None, `exclude_from_weight_decay` is used.
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
    """Moving average of the weights, which evaluation and the best checkpoint use.

    The clipping fields exist only through inheritance: set them on the optimizer.

    Attributes:
        trainable_weights_only: Whether to average only trainable weights, which excludes for
            example the moving statistics of batch normalization.
        average_decay: The fraction of the average that is kept at each update.
        start_step: The number of updates after which averaging starts.
        dynamic_decay: Whether the decay grows towards `average_decay` over the first updates.
        equal_weights: Whether to average all weights since `start_step` equally (stochastic weight
            averaging) and ignore the decay.
    """

    name: str = "ExponentialMovingAverage"
    trainable_weights_only: bool = True
    average_decay: float = 0.99
    start_step: int = 0
    dynamic_decay: bool = True
    equal_weights: bool = False


@dataclasses.dataclass
class LARSConfig(BaseOptimizerConfig):
    """LARS: momentum with a step size proportional to the norm of the layer's weights.

    Attributes:
        eeta: The coefficient of the ratio between the norms of the weights and the gradient.
        classic_momentum: Whether the learning rate multiplies the gradient before it enters the
            momentum, as in the paper.
        exclude_from_weight_decay: Patterns of variables without weight decay.
        exclude_from_layer_adaptation: Patterns of variables whose learning rate is not scaled. If
            empty or None, `exclude_from_weight_decay` is used.
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
    """Adafactor with an external learning rate; the fields have the names that its authors use.

    The factory builds Keras' Adafactor, which supports `decay_rate` (as `beta_2_decay`),
    `clipping_threshold`, `epsilon1`, `epsilon2` and `weight_decay`. The other fields must keep
    their defaults.
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
        learning_rate: Has no effect; set the learning rate in `LrConfig`.
        relative_step: Whether a constant learning rate is limited to `1 / sqrt(step)`.
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
    """Lion (https://arxiv.org/abs/2302.06675): fixed-size steps in the momentum's direction."""

    name: str = "Lion"
    beta_1: float = 0.9
    beta_2: float = 0.99
    weight_decay: float | None = None


@dataclasses.dataclass
class MuonConfig(BaseOptimizerConfig):
    """Muon (https://arxiv.org/abs/2502.16982): orthogonal steps for matrices, AdamW for the rest.

    Attributes:
        exclude_layers: Patterns of paths whose matrices are also updated by AdamW. List the output
            layer here.
        exclude_embeddings: Whether AdamW updates embeddings.
        adam_lr_ratio: AdamW's learning rate as a multiple of Muon's.
        ns_steps: The number of Newton-Schulz iterations per step.
        rms_rate: The root mean square of the step; None leaves the step unscaled.
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
    """Adam with the infinity norm in place of the second moment."""

    name: str = "Adamax"
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    weight_decay: float | None = None


@dataclasses.dataclass
class FtrlConfig(BaseOptimizerConfig):
    """Follow the regularized leader (FTRL), for sparse linear models."""

    name: str = "Ftrl"
    learning_rate_power: float = -0.5
    initial_accumulator_value: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    l2_shrinkage_regularization_strength: float = 0.0
    beta: float = 0.0


@dataclasses.dataclass
class AdadeltaConfig(BaseOptimizerConfig):
    """Adadelta (https://arxiv.org/abs/1212.5701): steps scaled by a window of past gradients.

    Attributes:
        rho: The fraction of the averages that is kept at each step.
    """

    name: str = "Adadelta"
    rho: float = 0.95
    epsilon: float = 1e-7
    weight_decay: float | None = None


@dataclasses.dataclass
class ScheduleFreeAdamWConfig(BaseOptimizerConfig):
    """Schedule-free AdamW (https://arxiv.org/abs/2405.15682), which needs no learning-rate decay.

    Use it with a constant learning rate. As in Keras, evaluation uses the weights at which
    gradients are computed, which lie between the averaged weights and the latest ones.

    Attributes:
        beta_1: The weight of the averaged weights in the weights of the model.
        warmup_steps: The number of steps in which the learning rate grows from 0.
    """

    name: str = "ScheduleFreeAdamW"
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    warmup_steps: int = 0
    weight_decay: float | None = None
