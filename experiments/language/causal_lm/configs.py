"""The parts of a config that all GPTs here have."""

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

# Products with a row's number stay within an int32.
_MOST_NGRAM_ROWS = 2**16


@dataclasses.dataclass
class GptModelConfig(hyperparams.Config):
    """A GPT; the defaults are those of GPT-2 small.

    Attributes:
        vocab_size: Tokens there are; 0 for as many as the data have.
        seq_length: Tokens that it sees at once, in training and evaluation too.
        num_layers: Blocks.
        num_attention_heads: Heads of each block.
        hidden_size: Width of what goes from block to block.
        intermediate_size: Width within a block's dense layers; 0 is four times `hidden_size`.
        hidden_activation: Of these layers; `gelu` is its tanh approximation.
        dropout_rate: Share dropped of the embeddings and of what each part of a block adds.
        attention_dropout_rate: Share dropped of the weights of attention.
        use_bias: Whether dense layers and normalizations have one.
        initializer_range: Standard deviation of the first weights; less by the root of the number
            of sums for those that end a part of a block.
        layer_norm_epsilon: Added to the variance.
        positions: `learned`, a vector added for each, or `rotary`, where attention sees distances.
        ngram_sizes: A token's embedding has added to it those of the n tokens that end with it, for
            each n of these; all n-grams share the rows of a table by their hash.
        ngram_rows: Rows of this table for each n.
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
                f"`hidden_size` is {self.hidden_size}, which {self.num_attention_heads} heads "
                "(`num_attention_heads`) can't share; wanted a multiple of it."
            )
        width = self.hidden_size // self.num_attention_heads
        if self.positions == "rotary" and width % 2:
            raise errors.ConfigValueError(
                f"`positions: rotary` turns pairs of numbers, and a head has {width} of them "
                "(`hidden_size / num_attention_heads`); wanted an even number."
            )
        if self.ngram_sizes and not self.ngram_rows:
            raise errors.ConfigValueError(
                f"`ngram_sizes` is {self.ngram_sizes} and `ngram_rows` 0; wanted rows for them."
            )
        if self.ngram_rows > _MOST_NGRAM_ROWS:
            raise errors.ConfigValueError(
                f"`ngram_rows` is {self.ngram_rows}; wanted at most {_MOST_NGRAM_ROWS}."
            )


def small_gpt(**fields: Any) -> GptModelConfig:
    """A GPT that CPUs train in minutes, and that sees its text too few times to need dropout.

    Args:
        **fields: Of `GptModelConfig`, over what is chosen here.
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
    """Stretches of one long text.

    Attributes:
        split: `train`, random stretches without end, or `validation`, all of it once.
        eval_context: Tokens of each stretch of an evaluation that are only there to be looked
            at, and were predicted in the one before. More of them make predictions better, and the
            evaluation longer.
    """

    split: str = "train"
    eval_context: int = 0

    def validate_fields(self) -> None:
        super().validate_fields()
        field_checks.require_one_of(self, "split", SPLITS)
        field_checks.require_not_negative(self, "eval_context")


@dataclasses.dataclass
class CausalLmConfig(cfg.TaskConfig):
    """Predicting the next token."""

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
    """AdamW as GPTs are trained with: decay of matrices only, half a cosine down to a tenth.

    Args:
        train_steps: The end of the cosine.
        warmup_steps: Steps in which the learning rate goes up.
        learning_rate: The highest.
        beta_2: Decay of the second moment.
        weight_decay_rate: How much of itself a weight loses, times the learning rate.
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
