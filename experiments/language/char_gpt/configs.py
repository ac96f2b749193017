"""`language/char_gpt` and `language/char_gpt_large`: GPTs on the characters of any text file.

python train.py --experiment=language/char_gpt --mode=train_and_eval --model_dir=/tmp/char_gpt \
  --set=task.input_path=/data/tinyshakespeare.txt
"""

import dataclasses

from experiments.language.causal_lm import configs
from official_lite.common import errors
from official_lite.core import config_definitions as cfg
from official_lite.core import exp_factory, task_factory

__all__ = ["CharGptConfig", "char_gpt", "char_gpt_large"]


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
    """Return nanoGPT's CPU recipe with rotary positions: 1.78 nats on Shakespeare's plays."""
    return _experiment(configs.small_gpt(vocab_size=0, seq_length=64), train_steps=2000)


@exp_factory.register_config_factory("language/char_gpt_large")
def char_gpt_large() -> cfg.ExperimentConfig:
    """Return a recipe between nanoGPT's CPU recipe and its GPU recipe, with rotary positions."""
    model = configs.small_gpt(
        vocab_size=0, seq_length=128, num_layers=6, num_attention_heads=6, hidden_size=192
    )
    params = _experiment(model, train_steps=4000)
    params.override({"task": {"train_data": {"global_batch_size": 16}}})
    return params


def _experiment(model: configs.GptModelConfig, train_steps: int) -> cfg.ExperimentConfig:
    return cfg.ExperimentConfig(
        task=CharGptConfig(model=model),
        trainer=cfg.TrainerConfig(
            train_steps=train_steps,
            steps_per_loop=250,
            summary_interval=250,
            checkpoint_interval=1000,
            validation_interval=train_steps,
            optimizer_config=configs.cosine_adamw(
                train_steps=train_steps, warmup_steps=100, learning_rate=1e-3, beta_2=0.99
            ),
        ),
        # This is the mode that `auto` chooses in longer runs. In `char_gpt`, benchmarking the modes
        # would take more time than the fastest mode saves.
        runtime=cfg.RuntimeConfig(distribution_strategy="one_device", execution="xla"),
    )
