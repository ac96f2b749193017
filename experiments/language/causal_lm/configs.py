"""The parts of a config that all GPT experiments share."""

import dataclasses
from typing import Any

from official_lite.common import errors
from official_lite.core import config_definitions as cfg
from official_lite.modeling import hyperparams, optimization
from official_lite.modeling.hyperparams import field_checks

__all__ = [
    "CausalLmConfig",
    "CausalLmDataConfig",
    "GptModelConfig",
    "cosine_adamw",
    "small_gpt",
]

SPLITS = ("train", "validation")
POSITIONS = ("learned", "rotary")

# The hash multiplies row numbers, and the products must fit into an int32.
_MAX_NGRAM_ROWS = 2**16


@dataclasses.dataclass
class GptModelConfig(hyperparams.Config):
    """A GPT; the defaults are those of GPT-2 small.

    Attributes:
        vocab_size: The number of tokens; 0 uses the number of tokens in the data.
        seq_length: The number of tokens that the model sees at once, in training and evaluation.
        num_layers: The number of blocks.
        num_attention_heads: The number of heads of each block.
        hidden_size: The width of the vectors between blocks.
        intermediate_size: The width within a block's dense layers; 0 is four times `hidden_size`.
        hidden_activation: The activation of these layers; `gelu` is its tanh approximation.
        dropout_rate: The dropout rate of the embeddings and of the output of each part of a block.
        attention_dropout_rate: The dropout rate of the attention weights.
        use_bias: Whether dense layers and normalizations have a bias.
        initializer_range: The standard deviation of the initial weights. For the layers that end a
            part of a block, it is divided by the square root of the number of sums.
        layer_norm_epsilon: A number added to the variance.
        positions: `learned`, which adds a vector for each position, or `rotary`, with which
            attention depends on distances.
        ngram_sizes: The values of n for which the embedding of the last n tokens is added to the
            embedding of each token. N-grams are mapped to the rows of a table by a hash.
        ngram_rows: The number of rows of this table for each n.
    """

    vocab_size: int = 50257
    seq_length: int = 1024
    num_layers: int = 12
    num_attention_heads: int = 12
    hidden_size: int = 768
    intermediate_size: int = 0
    hidden_activation: str = "gelu"
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.1
    use_bias: bool = True
    initializer_range: float = 0.02
    layer_norm_epsilon: float = 1e-5
    positions: str = "learned"
    ngram_sizes: tuple[int, ...] = ()
    ngram_rows: int = 0

    def validate_fields(self) -> None:
        super().validate_fields()
        field_checks.require_not_negative(self, "vocab_size", "intermediate_size", "ngram_rows")
        field_checks.require_positive(
            self, "seq_length", "num_layers", "num_attention_heads", "hidden_size"
        )
        field_checks.require_one_of(self, "positions", POSITIONS)
        if self.hidden_size % self.num_attention_heads:
            raise errors.ConfigValueError(
                f"`hidden_size` is {self.hidden_size}, which is not divisible by "
                f"`num_attention_heads`, {self.num_attention_heads}."
            )
        width = self.hidden_size // self.num_attention_heads
        if self.positions == "rotary" and width % 2:
            raise errors.ConfigValueError(
                "`positions: rotary` requires an even number of units per head, but `hidden_size "
                f"/ num_attention_heads` is {width}."
            )
        if self.ngram_sizes and not self.ngram_rows:
            raise errors.ConfigValueError(
                f"`ngram_sizes` is {self.ngram_sizes}, which requires `ngram_rows` > 0; got 0."
            )
        if self.ngram_rows > _MAX_NGRAM_ROWS:
            raise errors.ConfigValueError(
                f"`ngram_rows` is {self.ngram_rows}; expected at most {_MAX_NGRAM_ROWS}."
            )


def small_gpt(**fields: Any) -> GptModelConfig:
    """Return a GPT that trains on a CPU in minutes; its few epochs need no dropout.

    Args:
        **fields: Fields of `GptModelConfig` that override the values chosen here.
    """
    small: dict[str, Any] = {
        "num_layers": 4,
        "num_attention_heads": 4,
        "hidden_size": 128,
        "dropout_rate": 0.0,
        "attention_dropout_rate": 0.0,
        "use_bias": False,
        "positions": "rotary",
    }
    return GptModelConfig(**small | fields)


@dataclasses.dataclass
class CausalLmDataConfig(cfg.DataConfig):
    """Sequences cut from one long text.

    Attributes:
        split: `train`, an infinite stream of random sequences, or `validation`, all of the text
            once.
        eval_context: The number of tokens of each evaluation sequence that only serve as context;
            they are predicted in the sequence before. A larger number improves the predictions and
            makes the evaluation longer.
    """

    split: str = "train"
    eval_context: int = 0

    def validate_fields(self) -> None:
        super().validate_fields()
        field_checks.require_one_of(self, "split", SPLITS)
        field_checks.require_not_negative(self, "eval_context")


@dataclasses.dataclass
class CausalLmConfig(cfg.TaskConfig):
    """The config of next-token prediction."""

    model: GptModelConfig = dataclasses.field(default_factory=GptModelConfig)
    train_data: CausalLmDataConfig = dataclasses.field(
        default_factory=lambda: CausalLmDataConfig(
            split="train", is_training=True, global_batch_size=12
        )
    )
    validation_data: CausalLmDataConfig = dataclasses.field(
        default_factory=lambda: CausalLmDataConfig(
            split="validation", is_training=False, global_batch_size=64, drop_remainder=False
        )
    )


def cosine_adamw(
    train_steps: int,
    warmup_steps: int,
    learning_rate: float,
    beta_2: float = 0.95,
    weight_decay_rate: float = 0.1,
) -> optimization.OptimizationConfig:
    """Return AdamW as usual for GPTs: only matrices decay, and a cosine lowers the rate to a tenth.

    Args:
        train_steps: The step at which the cosine ends.
        warmup_steps: The number of steps in which the learning rate increases.
        learning_rate: The highest learning rate.
        beta_2: The decay of the second moment.
        weight_decay_rate: The fraction by which each step reduces a matrix, divided by the learning
            rate.
    """
    return optimization.OptimizationConfig(
        {
            "optimizer": {
                "type": "adamw",
                "adamw": {
                    "beta_2": beta_2,
                    "epsilon": 1e-8,
                    "weight_decay_rate": weight_decay_rate,
                    "exclude_from_weight_decay": ["bias", "gamma", "beta"],
                    "gradient_clip_norm": 1.0,
                },
            },
            "learning_rate": {
                "type": "cosine",
                "cosine": {
                    "initial_learning_rate": learning_rate,
                    "decay_steps": train_steps - warmup_steps,
                    "offset": warmup_steps,
                    "alpha": 0.1,
                },
            },
            "warmup": {"type": "linear", "linear": {"warmup_steps": warmup_steps}},
        }
    )
