"""The config of a study: the block `search` of an experiment. Nothing here needs TensorFlow."""

import dataclasses
from typing import Any, Literal

from official_lite.common import errors, flags
from official_lite.core import field_checks
from official_lite.modeling import hyperparams

__all__ = ["SearchConfig", "entry_of", "name_of", "search_config_of"]

# The Model Garden's words and Optuna's, for the same.
_Direction = Literal["minimize", "maximize"]
_DIRECTIONS: dict[str, _Direction] = {
    "minimize": "minimize",
    "min": "minimize",
    "lower": "minimize",
    "maximize": "maximize",
    "max": "maximize",
    "higher": "maximize",
}


@dataclasses.dataclass
class SearchConfig(hyperparams.Config):
    """What a study looks for, and how.

    Attributes:
        space: Paths into the config, and the values that each may take, in Optuna's words:
            `{type: float, low: 1e-4, high: 0.1, log: true}`, `{type: int, low: 1, high: 8}`,
            `{type: categorical, choices: [adam, sgd]}`, or just a list of choices. Paths may be
            dotted or nested.
        metric: The metric of the evaluations that counts, or several; `num_parameters` is one, too.
        direction: `minimize` or `maximize`; one for each metric.
        final_value: Which evaluation of a trial counts: its `last` one or its `best` one.
        mode: The mode of each trial.
        strategy: How the next trial is chosen: `random`, `grid`, `tpe`, `cma_es`, `nsga2` or
            `regularized_evolution`, a sampler as `package.module:Class`, or such a `name` with the
            arguments of the sampler.
        pruner: What ends trials that promise little: `none`, `median`, `successive_halving`,
            `hyperband` or `threshold`, or a pruner in the same forms.
        num_trials: How many trials the study has in all, failed ones too.
        num_workers: Processes that work on the study at once; with 1, this process does.
        isolation: `process` runs each trial in a process of its own, so that a trial that crashes
            does no harm; `none` runs it in the worker.
        storage: Where the study is kept: empty for a journal file in its directory, or a URL of
            SQLAlchemy's, such as `sqlite:///study.db`.
        study_name: Its name there; empty for the path of its directory.
        seed: Together with a trial's number, it decides what is drawn for the trial.
        top_k: How many trials `top_k.json` has.
        max_starts: How often a trial whose process was killed is taken up again, before it counts
            as failed.
        evaluator: A function `fit(model, report, **kwargs)` that takes the place of the training,
            as `package.module:function`, or such a `name` with keyword arguments.
    """

    space: hyperparams.FreeConfig = dataclasses.field(default_factory=hyperparams.FreeConfig)
    metric: str | list[str] = ""
    direction: str | list[str] = ""
    final_value: str = "last"
    mode: str = "train_and_eval"
    strategy: str | hyperparams.PluginConfig = "tpe"
    pruner: str | hyperparams.PluginConfig = "none"
    num_trials: int = 20
    num_workers: int = 1
    isolation: str = "none"
    storage: str = ""
    study_name: str = ""
    seed: int = 0
    top_k: int = 10
    max_starts: int = 5
    evaluator: str | hyperparams.PluginConfig = ""

    @property
    def metrics(self) -> list[str]:
        """The metrics, one for each direction; none if what a trial returns is the value."""
        return _as_list(self.metric)

    @property
    def directions(self) -> list[_Direction]:
        """`minimize` or `maximize`, one for each objective."""
        return [_DIRECTIONS[word] for word in _as_list(self.direction)]

    def validate_fields(self) -> None:
        field_checks.require_positive(self, "num_trials", "num_workers", "top_k", "max_starts")
        field_checks.require_one_of(self, "final_value", ("last", "best"))
        field_checks.require_one_of(self, "isolation", ("none", "process"))
        field_checks.require_one_of(self, "mode", tuple(m for m in flags.MODES if "train" in m))
        self._check_objectives()

    def _check_objectives(self) -> None:
        given = _as_list(self.direction)
        unknown = [word for word in given if word not in _DIRECTIONS]
        if unknown or not given:
            raise errors.ConfigValueError(
                f"`direction` is {self.direction!r}; wanted `minimize` or `maximize`, and one for "
                "each metric. There is no default: a wrong guess would look for the worst."
            )
        if self.metrics and len(self.metrics) != len(given):
            raise errors.ConfigValueError(
                f"`metric` is {self.metric!r} and `direction` is {self.direction!r}; wanted one "
                "direction for each metric."
            )
        if len(given) > 1 and (self.final_value != "last" or name_of(self.pruner) != "none"):
            raise errors.ConfigValueError(
                f"`final_value` is {self.final_value!r} and `pruner` is {name_of(self.pruner)!r}; "
                "with several metrics there is no single best evaluation, so wanted `last` and "
                "`none`."
            )


def search_config_of(params: Any) -> SearchConfig:
    """The block `search` of an experiment's config, checked.

    Raises:
        errors.ConfigError: There is none, or something in it can't be.
    """
    block = getattr(params, "search", None)
    if block is None:
        raise errors.ConfigValueError(
            "The config has no `search`, so there is nothing to look for. Give it a `space`, a "
            "`metric` and a `direction`; docs/search.md shows how."
        )
    config = SearchConfig(block.as_dict())
    config.validate()
    return config


def name_of(plugin: str | hyperparams.PluginConfig) -> str:
    """The name of what is given by its name alone, or with arguments."""
    return plugin if isinstance(plugin, str) else str(plugin.name)


def entry_of(plugin: str | hyperparams.PluginConfig) -> str | dict[str, Any]:
    """The same as plain values."""
    return plugin if isinstance(plugin, str) else plugin.as_dict()


def _as_list(value: str | list[str]) -> list[str]:
    return ([value] if value else []) if isinstance(value, str) else list(value)
