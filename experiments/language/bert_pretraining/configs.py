"""`language/bert_pretraining`: hidden words and next sentences, on one's own text.

python train.py --experiment=language/bert_pretraining --mode=train_and_eval --model_dir=/tmp/bert \
  --set=task.tokenizer_path=/tmp/wordpiece.json --set=task.train_data.input_path='train*.txt' \
  --set=task.validation_data.input_path='validation*.txt'
"""

import dataclasses

from official_lite.common import errors
from official_lite.core import config_definitions as cfg
from official_lite.core import exp_factory, task_factory
from official_lite.modeling import hyperparams, optimization
from official_lite.modeling.hyperparams import field_checks

__all__ = [
    "BertEncoderConfig",
    "BertPretrainDataConfig",
    "ClsHeadConfig",
    "EncoderConfig",
    "MaskedLMConfig",
    "PretrainerConfig",
    "bert_pretraining",
]

FILE_TYPES = ("text", "tfrecord")

_TRAIN_STEPS = 1_000_000


@dataclasses.dataclass
class BertEncoderConfig(hyperparams.Config):
    """The encoder; the fields are the Model Garden's, the defaults those of BERT base.

    Attributes:
        vocab_size: Tokens there are.
        hidden_size: Width of what goes from block to block.
        num_layers: Blocks.
        num_attention_heads: Heads of each block.
        hidden_activation: Of a block's dense layers.
        intermediate_size: Width within them.
        dropout_rate: Share dropped of the embeddings and of what each part of a block adds.
        attention_dropout_rate: Share dropped of the weights of attention.
        max_position_embeddings: The longest sequence.
        type_vocab_size: Kinds of segments.
        initializer_range: Standard deviation of the first weights.
        norm_first: Whether what goes into a part of a block is normalized, not what comes out.
        use_bias: Whether dense layers and normalizations have one.
        layer_norm_epsilon: Added to the variance.
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_layers: int = 12
    num_attention_heads: int = 12
    hidden_activation: str = "gelu"
    intermediate_size: int = 3072
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    norm_first: bool = False
    use_bias: bool = True
    layer_norm_epsilon: float = 1e-12

    def validate_fields(self) -> None:
        super().validate_fields()
        if self.hidden_size % self.num_attention_heads:
            raise errors.ConfigValueError(
                f"`hidden_size` is {self.hidden_size}, which {self.num_attention_heads} heads "
                "(`num_attention_heads`) can't share; wanted a multiple of it."
            )


@dataclasses.dataclass
class EncoderConfig(hyperparams.OneOfConfig):
    """Which encoder."""

    type: str | None = "bert"
    bert: BertEncoderConfig = dataclasses.field(default_factory=BertEncoderConfig)


@dataclasses.dataclass
class ClsHeadConfig(hyperparams.Config):
    """Classes of a whole sequence, from its first token.

    Attributes:
        inner_dim: Units of a dense layer before the last; 0 is none.
        num_classes: How many classes.
        activation: Of that layer.
        dropout_rate: Share dropped after it.
        cls_token_idx: The place of the token.
        name: Of the head.
    """

    inner_dim: int = 0
    num_classes: int = 2
    activation: str | None = "tanh"
    dropout_rate: float = 0.0
    cls_token_idx: int = 0
    name: str | None = None


@dataclasses.dataclass
class PretrainerConfig(hyperparams.Config):
    """An encoder, and what is learnt by it.

    Attributes:
        encoder: The encoder.
        cls_heads: The heads for whole sequences.
        mlm_activation: Of the layer before hidden words are guessed.
        mlm_initializer_range: Standard deviation of its first weights.
    """

    encoder: EncoderConfig = dataclasses.field(default_factory=EncoderConfig)
    cls_heads: list[ClsHeadConfig] = dataclasses.field(default_factory=list)
    mlm_activation: str = "gelu"
    mlm_initializer_range: float = 0.02


@dataclasses.dataclass
class BertPretrainDataConfig(cfg.DataConfig):
    """Text in files, or examples as the Model Garden's `create_pretraining_data` writes them.

    Attributes:
        seq_length: Tokens of an example.
        max_predictions_per_seq: The most of them that may be hidden.
        use_next_sentence_label: Whether to learn if the second part follows the first.
        use_v2_feature_names: Whether TFRecords have `input_word_ids` and `input_type_ids`, or
            `input_ids` and `segment_ids`.
        file_type: `tfrecord`, or `text`: UTF-8, a sentence in each line, an empty line between
            documents. Of text other words are hidden in each epoch.
        mask_rate: Share of the tokens of a text that are hidden.
    """

    seq_length: int = 512
    max_predictions_per_seq: int = 76
    use_next_sentence_label: bool = True
    use_v2_feature_names: bool = False
    file_type: str = "text"
    mask_rate: float = 0.15

    def validate_fields(self) -> None:
        super().validate_fields()
        field_checks.require_one_of(self, "file_type", FILE_TYPES)
        field_checks.require_positive(self, "max_predictions_per_seq")
        # Three special tokens, and two of each part to choose from.
        if self.seq_length < max(8, self.max_predictions_per_seq):
            raise errors.ConfigValueError(
                f"`seq_length` is {self.seq_length}; wanted 8 or more, and not less than "
                f"`max_predictions_per_seq`, {self.max_predictions_per_seq}."
            )


@dataclasses.dataclass
class MaskedLMConfig(cfg.TaskConfig):
    """Guessing hidden words, and whether one text follows another.

    Attributes:
        tokenizer_path: A `tokenizer.json` of the library `tokenizers`, for text.
    """

    tokenizer_path: str = ""
    model: PretrainerConfig = dataclasses.field(
        default_factory=lambda: PretrainerConfig(
            cls_heads=[
                ClsHeadConfig(inner_dim=768, num_classes=2, dropout_rate=0.1, name="next_sentence")
            ]
        )
    )
    train_data: BertPretrainDataConfig = dataclasses.field(
        default_factory=lambda: BertPretrainDataConfig(is_training=True, global_batch_size=512)
    )
    validation_data: BertPretrainDataConfig = dataclasses.field(
        default_factory=lambda: BertPretrainDataConfig(
            is_training=False, global_batch_size=32, drop_remainder=False
        )
    )


task_factory.register_task_cls(
    MaskedLMConfig, "experiments.language.bert_pretraining.task:MaskedLMTask"
)


@exp_factory.register_config_factory("language/bert_pretraining")
def bert_pretraining() -> cfg.ExperimentConfig:
    """BERT base, trained as its authors did."""
    return cfg.ExperimentConfig(
        task=MaskedLMConfig(),
        trainer=cfg.TrainerConfig(
            train_steps=_TRAIN_STEPS,
            steps_per_loop=100,
            summary_interval=100,
            checkpoint_interval=1000,
            validation_interval=1000,
            optimizer_config=optimization.OptimizationConfig(
                {
                    "optimizer": {
                        "type": "adamw",
                        "adamw": {
                            "epsilon": 1e-6,
                            "weight_decay_rate": 0.01,
                            "exclude_from_weight_decay": ["bias", "gamma", "beta"],
                        },
                    },
                    "learning_rate": {
                        "type": "polynomial",
                        "polynomial": {
                            "initial_learning_rate": 1e-4,
                            "end_learning_rate": 0.0,
                            "decay_steps": _TRAIN_STEPS,
                        },
                    },
                    "warmup": {"type": "polynomial", "polynomial": {"warmup_steps": 10_000}},
                }
            ),
        ),
    )
