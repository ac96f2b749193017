"""`language/gpt_stdlib`: a small GPT on the source text of this machine's standard library.

python train.py --experiment=language/gpt_stdlib --mode=train_and_eval --model_dir=/tmp/gpt_stdlib
"""

import dataclasses

from experiments.language.causal_lm import configs
from official_lite.core import config_definitions as cfg
from official_lite.core import exp_factory, task_factory
from official_lite.modeling import optimization
from official_lite.modeling.hyperparams import field_checks

__all__ = ["GptStdlibConfig", "gpt_stdlib"]

_TRAIN_STEPS = 3000


@dataclasses.dataclass
class GptStdlibConfig(configs.CausalLmConfig):
    """The config of predicting the next byte of Python's source text.

    Attributes:
        source_dir: The directory whose `*.py` files are read. If empty, the standard library of
            this interpreter is read, without installed packages and without tests.
        held_out_percent: The approximate percentage of files used for validation, chosen by a hash
            of their path.
    """

    source_dir: str = ""
    held_out_percent: int = 5

    def validate_fields(self) -> None:
        super().validate_fields()
        field_checks.require_positive(self, "held_out_percent")


task_factory.register_task_cls(
    GptStdlibConfig, "experiments.language.gpt_stdlib.task:GptStdlibTask"
)


@exp_factory.register_config_factory("language/gpt_stdlib")
def gpt_stdlib() -> cfg.ExperimentConfig:
    """Return a model that beats the bits per byte of `gzip -9` after five minutes of training."""
    return cfg.ExperimentConfig(
        task=GptStdlibConfig(
            model=configs.small_gpt(
                vocab_size=256,
                seq_length=128,
                ngram_sizes=(2, 3, 4, 5),
                ngram_rows=8192,
            ),
            train_data=configs.CausalLmDataConfig(
                split="train", is_training=True, global_batch_size=16
            ),
            validation_data=configs.CausalLmDataConfig(
                split="validation",
                is_training=False,
                global_batch_size=64,
                drop_remainder=False,
                eval_context=64,
            ),
        ),
        trainer=cfg.TrainerConfig(
            train_steps=_TRAIN_STEPS,
            steps_per_loop=250,
            summary_interval=250,
            checkpoint_interval=1000,
            validation_interval=0,
            optimizer_config=optimization.OptimizationConfig(
                {
                    "optimizer": {
                        "type": "muon",
                        "muon": {
                            "weight_decay": 0.1,
                            "adam_weight_decay": None,
                            "adam_beta_2": 0.99,
                            "global_clipnorm": 1.0,
                        },
                    },
                    "learning_rate": {
                        "type": "cosine",
                        "cosine": {
                            "initial_learning_rate": 4e-3,
                            "decay_steps": _TRAIN_STEPS,
                            "alpha": 0.05,
                        },
                    },
                    "warmup": {"type": "linear", "linear": {"warmup_steps": 100}},
                }
            ),
        ),
        # This mode is the fastest for the model, but `auto` does not benchmark modes in such a
        # short run.
        runtime=cfg.RuntimeConfig(distribution_strategy="one_device", execution="xla"),
    )
