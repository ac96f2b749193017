"""`language/gpt2`: GPT-2 small on your own text.

python train.py --experiment=language/gpt2 --mode=train_and_eval --model_dir=/tmp/gpt2 \
  --set=task.tokenizer_path=/tmp/bpe.json --set=task.train_data.input_path='/data/train*.txt' \
  --set=task.validation_data.input_path='/data/validation*.txt'
"""

import dataclasses

from experiments.language.causal_lm import configs
from official_lite.core import config_definitions as cfg
from official_lite.core import exp_factory, task_factory
from official_lite.modeling.hyperparams import field_checks

__all__ = ["Gpt2Config", "Gpt2DataConfig", "gpt2"]

FILE_TYPES = ("text", "tfrecord")

_TRAIN_STEPS = 600_000


@dataclasses.dataclass
class Gpt2DataConfig(configs.CausalLmDataConfig):
    """Text files, under `input_path`.

    Attributes:
        file_type: `text`, UTF-8, or `tfrecord`, as `tokenizer.write_records` writes them.
    """

    file_type: str = "text"

    def validate_fields(self) -> None:
        super().validate_fields()
        field_checks.require_one_of(self, "file_type", FILE_TYPES)


@dataclasses.dataclass
class Gpt2Config(configs.CausalLmConfig):
    """The config of next-token prediction.

    Attributes:
        tokenizer_path: A `tokenizer.json` of the library `tokenizers`.
    """

    MODEL_FILES = ("tokenizer_path",)

    tokenizer_path: str = ""
    train_data: Gpt2DataConfig = dataclasses.field(
        default_factory=lambda: Gpt2DataConfig(
            split="train", is_training=True, global_batch_size=480, shuffle_buffer_size=10_000
        )
    )
    validation_data: Gpt2DataConfig = dataclasses.field(
        default_factory=lambda: Gpt2DataConfig(
            split="validation", is_training=False, global_batch_size=16, drop_remainder=False
        )
    )


task_factory.register_task_cls(Gpt2Config, "experiments.language.gpt2.task:Gpt2Task")


@exp_factory.register_config_factory("language/gpt2")
def gpt2() -> cfg.ExperimentConfig:
    """Return GPT-2 small with half a million tokens per step."""
    return cfg.ExperimentConfig(
        # No dropout, because the model sees each text once or only a few times.
        task=Gpt2Config(model=configs.GptModelConfig(dropout_rate=0.0, attention_dropout_rate=0.0)),
        trainer=cfg.TrainerConfig(
            train_steps=_TRAIN_STEPS,
            steps_per_loop=100,
            summary_interval=100,
            checkpoint_interval=1000,
            validation_interval=1000,
            grad_accum_steps=40,
            optimizer_config=configs.cosine_adamw(
                train_steps=_TRAIN_STEPS, warmup_steps=2000, learning_rate=6e-4
            ),
        ),
    )
