"""`language/char_gpt`: a small GPT on the characters of any text file.

python train.py --experiment=language/char_gpt --mode=train_and_eval --model_dir=/tmp/char_gpt \
  --set=task.input_path=/data/tinyshakespeare.txt
"""

import dataclasses

from experiments.language.causal_lm import configs
from official_lite.common import errors
from official_lite.core import config_definitions as cfg
from official_lite.core import exp_factory, task_factory

__all__ = ["CharGptConfig", "char_gpt"]

_TRAIN_STEPS = 2000


@dataclasses.dataclass
class CharGptConfig(configs.CausalLmConfig):
    """The config of next-character prediction.

    Attributes:
        input_path: A UTF-8 text file, or several as in `DataConfig.input_path`.
        train_fraction: The fraction at the beginning of the text that is used for training; the
            rest is for validation.
    """

    input_path: str = ""
    train_fraction: float = 0.9

    def validate_fields(self) -> None:
        super().validate_fields()
        if not 0 < self.train_fraction < 1:
            raise errors.ConfigValueError(
                f"`train_fraction` is {self.train_fraction}; expected a number between 0 and 1."
            )


task_factory.register_task_cls(CharGptConfig, "experiments.language.char_gpt.task:CharGptTask")


@exp_factory.register_config_factory("language/char_gpt")
def char_gpt() -> cfg.ExperimentConfig:
    """Return nanoGPT's recipe for CPUs with rotary positions: 1.78 nats on Shakespeare's plays."""
    return cfg.ExperimentConfig(
        task=CharGptConfig(model=configs.small_gpt(vocab_size=0, seq_length=64)),
        trainer=cfg.TrainerConfig(
            train_steps=_TRAIN_STEPS,
            steps_per_loop=250,
            summary_interval=250,
            checkpoint_interval=1000,
            validation_interval=_TRAIN_STEPS,
            optimizer_config=configs.cosine_adamw(
                train_steps=_TRAIN_STEPS, warmup_steps=100, learning_rate=1e-3, beta_2=0.99
            ),
        ),
        # `auto` would choose this mode for a longer training; this one is too short to pay for the
        # search.
        runtime=cfg.RuntimeConfig(distribution_strategy="one_device", execution="xla"),
    )
