"""`language/bert_pretraining`: masked words and next sentences, on your own text.

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
    """The encoder. The fields have the Model Garden's names; the defaults are those of BERT base.

    Attributes:
        vocab_size: The number of tokens.
        hidden_size: The width of the vectors between blocks.
        num_layers: The number of blocks.
        num_attention_heads: The number of heads of each block.
        hidden_activation: The activation of a block's dense layers.
        intermediate_size: The width within a block's dense layers.
        dropout_rate: The dropout rate of the embeddings and of the output of each part of a block.
        attention_dropout_rate: The dropout rate of the attention weights.
        max_position_embeddings: The length of the longest sequence.
        type_vocab_size: The number of segment types.
        initializer_range: The standard deviation of the initial weights.
        norm_first: Whether the input of a part of a block is normalized instead of its output.
        use_bias: Whether dense layers and normalizations have a bias.
        layer_norm_epsilon: A number added to the variance.
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
                f"`hidden_size` is {self.hidden_size}, which is not divisible by "
                f"`num_attention_heads`, {self.num_attention_heads}."
            )


@dataclasses.dataclass
class EncoderConfig(hyperparams.OneOfConfig):
    """The choice of an encoder."""

    type: str | None = "bert"
    bert: BertEncoderConfig = dataclasses.field(default_factory=BertEncoderConfig)


@dataclasses.dataclass
class ClsHeadConfig(hyperparams.Config):
    """A head that classifies a whole sequence from its first token.

    Attributes:
        inner_dim: The units of a dense layer before the last layer; 0 omits it.
        num_classes: The number of classes.
        activation: The activation of the inner layer.
        dropout_rate: The dropout rate after the inner layer.
        cls_token_idx: The position of the token.
        name: The name of the head.
    """

    inner_dim: int = 0
    num_classes: int = 2
    activation: str | None = "tanh"
    dropout_rate: float = 0.0
    cls_token_idx: int = 0
    name: str | None = None


@dataclasses.dataclass
class PretrainerConfig(hyperparams.Config):
    """An encoder and its pre-training heads.

    Attributes:
        encoder: The encoder.
        cls_heads: The heads for whole sequences.
        mlm_activation: The activation of the layer before masked words are predicted.
        mlm_initializer_range: The standard deviation of the initial weights of that layer.
    """

    encoder: EncoderConfig = dataclasses.field(default_factory=EncoderConfig)
    cls_heads: list[ClsHeadConfig] = dataclasses.field(default_factory=list)
    mlm_activation: str = "gelu"
    mlm_initializer_range: float = 0.02


@dataclasses.dataclass
class BertPretrainDataConfig(cfg.DataConfig):
    """Text files, or examples written by the Model Garden's `create_pretraining_data`.

    Attributes:
        seq_length: The number of tokens of an example.
        max_predictions_per_seq: The maximum number of masked tokens of an example.
        use_next_sentence_label: Whether to predict if the second part follows the first.
        use_v2_feature_names: Whether TFRecords have `input_word_ids` and `input_type_ids`, or
            `input_ids` and `segment_ids`.
        file_type: `tfrecord`, or `text`: UTF-8 with one sentence per line and an empty line between
            documents. With text, every epoch masks different words.
        mask_rate: The fraction of the tokens of a text that are masked.
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
        # Leave room for three special tokens and at least two tokens of each part.
        if self.seq_length < max(8, self.max_predictions_per_seq):
            raise errors.ConfigValueError(
                f"`seq_length` is {self.seq_length}; expected at least 8, and at least "
                f"`max_predictions_per_seq`, {self.max_predictions_per_seq}."
            )


@dataclasses.dataclass
class MaskedLMConfig(cfg.TaskConfig):
    """The config of masked language modeling and next sentence prediction.

    Attributes:
        tokenizer_path: A `tokenizer.json` of the library `tokenizers`, required for text.
    """

    MODEL_FILES = ("tokenizer_path",)

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
    """Return the experiment that trains BERT base with its authors' recipe."""
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
