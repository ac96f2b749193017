"""The config of a study: the `search` block of an experiment. Does not import TensorFlow."""

import dataclasses
from typing import Any, Literal

from official_lite.common import errors, flags
from official_lite.core import config_definitions as cfg
from official_lite.modeling import hyperparams
from official_lite.modeling.hyperparams import field_checks

__all__ = ["SearchConfig", "entry_of", "name_of", "search_config_of"]

# Accept the words of the Model Garden as well as those of Optuna.
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
    """The search space, objective and strategy of a study.

    Attributes:
        space: Paths into the config with the values that each may take, in Optuna's terms:
            `{type: float, low: 1e-4, high: 0.1, log: true}`, `{type: int, low: 1, high: 8}`,
            `{type: categorical, choices: [adam, sgd]}`, or just a list of choices. Paths may be
            dotted or nested.
        metric: The evaluation metric to optimize, or a list of metrics. `num_parameters` is also
            available as a metric.
        direction: `minimize` or `maximize`; one for each metric.
        final_value: The evaluation that counts as the result of a trial: `last`; `best`, the one
            with the best value of `metric`; or `best_checkpoint`, the one that
            `trainer.best_checkpoint_eval_metric` selects.
        mode: The mode in which each trial runs.
        strategy: The strategy that chooses the next trial: `random`, `grid`, `tpe`, `cma_es`,
            `nsga2`, `regularized_evolution`, or a sampler as `package.module:Class`. To pass
            arguments to the sampler, give a dict with `name` and the arguments.
        pruner: The pruner that ends unpromising trials early: `none`, `median`,
            `successive_halving`, `hyperband`, `threshold`, or a pruner in the same forms as
            `strategy`.
        num_trials: Total number of trials, including failed ones.
        num_workers: Number of processes that work on the study at the same time. With 1, trials run
            in this process.
        isolation: `process` runs each trial in its own process, so that a crash of the trial does
            not affect the worker; `none` runs trials in the worker.
        storage: The storage of the study: empty for a journal file in the study's directory, or an
            SQLAlchemy URL such as `sqlite:///study.db`.
        study_name: Name of the study in a database; empty for the path of its directory.
        seed: Seed of the study. The seed and the number of a trial determine the trial's values.
        top_k: Number of trials in `top_k.json`.
        max_starts: Number of times the process of a trial may be killed before the trial counts as
            failed.
        evaluator: A function `fit(model, report, **kwargs)` that replaces the training, as
            `package.module:function`. To pass keyword arguments, give a dict with `name` and the
            arguments.
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
        """The metrics, one for each direction; empty if a trial returns its value directly."""
        return _as_list(self.metric)

    @property
    def directions(self) -> list[_Direction]:
        """`minimize` or `maximize`, one for each objective."""
        return [_DIRECTIONS[word] for word in _as_list(self.direction)]

    @property
    def value_names(self) -> list[str]:
        """The names of a trial's values, one for each objective: the metrics if there are any."""
        count = len(self.directions)
        return self.metrics or (["value"] if count == 1 else [f"value_{n}" for n in range(count)])

    def validate_fields(self) -> None:
        field_checks.require_positive(self, "num_trials", "num_workers", "top_k", "max_starts")
        field_checks.require_one_of(self, "final_value", ("last", "best", "best_checkpoint"))
        field_checks.require_one_of(self, "isolation", ("none", "process"))
        field_checks.require_one_of(
            self, "mode", tuple(mode.value for mode in flags.Mode if mode.trains)
        )
        self._check_objectives()

    def _check_objectives(self) -> None:
        given = _as_list(self.direction)
        unknown = [word for word in given if word not in _DIRECTIONS]
        if unknown or not given:
            raise errors.ConfigValueError(
                f"`direction` is {self.direction!r}; expected `minimize` or `maximize`, one for "
                "each metric. There is no default, because a wrong direction would select the "
                "worst trials."
            )
        if self.metrics and len(self.metrics) != len(given):
            raise errors.ConfigValueError(
                f"`metric` is {self.metric!r} and `direction` is {self.direction!r}; expected one "
                "direction for each metric."
            )
        if len(given) > 1 and (self.final_value == "best" or name_of(self.pruner) != "none"):
            raise errors.ConfigValueError(
                f"`final_value` is {self.final_value!r} and `pruner` is {name_of(self.pruner)!r}; "
                "with several metrics there is no single best evaluation, so expected `last` or "
                "`best_checkpoint`, and `none`."
            )


def search_config_of(params: cfg.ExperimentConfig) -> SearchConfig:
    """Return the validated `search` block of an experiment's config.

    Raises:
        errors.ConfigError: If the block is missing or invalid.
    """
    block = params.search
    if block is None:
        raise errors.ConfigValueError(
            "The config has no `search`. Set its `space`, `metric` and `direction`; see "
            "docs/search.md."
        )
    config = SearchConfig(block.as_dict())
    config.validate()
    return config


def name_of(plugin: str | hyperparams.PluginConfig) -> str:
    """Return the name of a plugin that is given as a name or as a name with arguments."""
    return plugin if isinstance(plugin, str) else str(plugin.name)


def entry_of(plugin: str | hyperparams.PluginConfig) -> str | dict[str, Any]:
    """Return a plugin entry as plain values: a string or a dict."""
    return plugin if isinstance(plugin, str) else plugin.as_dict()


def _as_list(value: str | list[str]) -> list[str]:
    return ([value] if value else []) if isinstance(value, str) else list(value)
