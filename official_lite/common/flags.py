"""The modes of a run, and the flags of an experiment: the Model Garden's and a few more.

This module does not need TensorFlow.
"""

import enum
from collections.abc import Sequence

from absl import flags

from official_lite.common import errors, files, suggestions


class Mode(enum.StrEnum):
    """The mode of a run, with the value that `--mode` accepts."""

    TRAIN = "train"
    EVAL = "eval"
    TRAIN_AND_EVAL = "train_and_eval"
    CONTINUOUS_EVAL = "continuous_eval"
    CONTINUOUS_TRAIN_AND_EVAL = "continuous_train_and_eval"
    TRAIN_AND_POST_EVAL = "train_and_post_eval"
    TEST = "test"
    PREDICT = "predict"
    SEARCH = "search"

    @classmethod
    def parse(cls, name: str) -> "Mode":
        """Return the mode with this name.

        Raises:
            errors.UnknownNameError: There is no such mode.
        """
        try:
            return cls(name)
        except ValueError:
            raise errors.UnknownNameError(
                f"The mode {name!r} is not implemented. {suggestions.did_you_mean(name, list(cls))}"
            ) from None

    @property
    def trains(self) -> bool:
        """Return whether the run changes weights and therefore owns its model directory."""
        return "train" in self.value

    @property
    def evaluates(self) -> bool:
        """Return whether the run evaluates."""
        return "eval" in self.value or self.tests

    @property
    def evaluates_last(self) -> bool:
        """Return whether the run ends with an evaluation that is not part of training."""
        return self.tests or self in (Mode.EVAL, Mode.CONTINUOUS_EVAL, Mode.TRAIN_AND_POST_EVAL)

    @property
    def tests(self) -> bool:
        """Return whether the run evaluates the test data instead of the validation data."""
        return self is Mode.TEST

    @property
    def predicts(self) -> bool:
        """Return whether the run writes predictions and therefore owns their directory."""
        return self is Mode.PREDICT

    @property
    def is_a_single_run(self) -> bool:
        """Return whether the mode starts a single run, in one model directory."""
        return self not in (Mode.SEARCH, Mode.CONTINUOUS_TRAIN_AND_EVAL)


MODES = tuple(mode.value for mode in Mode)


def define_flags() -> None:
    """Define the flags; repeated calls have no effect."""
    if "experiment" in flags.FLAGS:
        return
    _define_model_garden_flags()
    _define_own_flags()


def expand_home(arguments: Sequence[str]) -> list[str]:
    """Expand `~` where an argument, or the value after its `=`, begins with it.

    Arguments after `--` belong to another program and are not changed.
    """
    own = list(arguments)
    end = own.index("--") if "--" in own else len(own)
    expanded = []
    for argument in own[:end]:
        name, separator, value = argument.partition("=")
        is_flag = name.startswith("-") and separator
        path = files.expand_home(value if is_flag else argument)
        expanded.append(f"{name}={path}" if is_flag else path)
    return expanded + own[end:]


def _define_model_garden_flags() -> None:
    flags.DEFINE_string(
        "experiment", None, "Name of a registered experiment; see `official-lite experiments`."
    )
    flags.DEFINE_enum("mode", None, MODES, "What to run.")
    flags.DEFINE_string(
        "model_dir",
        None,
        "Directory of the run for checkpoints, metrics, config and log, such as /tmp/my_run.",
    )
    flags.DEFINE_multi_string(
        "config_file",
        None,
        "YAML or JSON file of overrides; repeatable, in order.",
    )
    flags.DEFINE_string(
        "params_override",
        None,
        "YAML or JSON text or file, or `a.b=c,d=e`, that overrides the config files.",
    )
    _define_gin_flags()
    flags.DEFINE_string("tpu", None, "Address or name of the TPU; overrides `runtime.tpu`.")
    flags.DEFINE_string(
        "tf_data_service", None, "Address of the tf.data service dispatcher for all input data."
    )
    flags.DEFINE_string(
        "tpu_platform", None, "Accepted for compatibility with the Model Garden; has no effect."
    )


def _define_gin_flags() -> None:
    # Some libraries define the gin flags themselves.
    if "gin_file" not in flags.FLAGS:
        flags.DEFINE_multi_string("gin_file", None, "Gin file to parse; repeatable, in order.")
    if "gin_params" not in flags.FLAGS:
        flags.DEFINE_multi_string("gin_params", None, "Gin binding to parse; repeatable.")


def _define_own_flags() -> None:
    flags.DEFINE_multi_string("set", None, "One override, `path=value`, applied last; repeatable.")
    flags.DEFINE_multi_string(
        "import", None, "Module or .py file to import for its registrations; repeatable."
    )
    flags.DEFINE_bool("print_config", False, "Print the resolved config as YAML and stop.")
    flags.DEFINE_bool(
        "dry_run",
        False,
        "Build everything, estimate the memory of a training step, run one training step and, "
        "unless --mode=train, one evaluation step, and stop.",
    )
    flags.DEFINE_bool(
        "fast_dev_run",
        False,
        "Train 20 steps in --model_dir, evaluate 2 batches every 10 steps, and report every step.",
    )
    flags.DEFINE_bool(
        "allow_config_change",
        False,
        "Resume from the checkpoints in --model_dir even if the config has changed.",
    )
    flags.DEFINE_bool(
        "safe_config",
        False,
        "Refuse configs that can run code (import, include and references in gin, modules and "
        "files in YAML) or write outside --model_dir.",
    )
