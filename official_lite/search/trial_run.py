"""One trial while it runs: what it tries, where it may write, and what it reports."""

import dataclasses
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import optuna
from absl import logging

from official_lite.common import errors, files, suggestions
from official_lite.search import search_config

__all__ = [
    "Loop",
    "Outcome",
    "TrialRun",
    "current_trial",
    "report_final_result",
    "report_intermediate_result",
    "run_trial",
]

_OUTCOME = "trial.json"


class Loop(Protocol):
    """What a trial has to know of a training loop: `orbit.Controller` complies."""

    @property
    def step(self) -> int: ...

    def request_stop(self, reason: str) -> None: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a trial has ended.

    Attributes:
        state: `complete`, `pruned` or `fail`.
        values: What counts, one for each direction; empty unless it is complete.
        metrics: Everything that was measured in the end.
        reason: Why it has failed.
    """

    state: str
    values: Sequence[float] = ()
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    reason: str = ""

    def write(self, trial: "TrialRun") -> None:
        """Puts it into the trial's directory, for whoever takes the trial up."""
        record = {"number": trial.number, "params": trial.params, **dataclasses.asdict(self)}
        files.makedirs(trial.model_dir)
        path = os.path.join(trial.model_dir, _OUTCOME)
        files.write_text(path, json.dumps(record, indent=2, default=str) + "\n")

    @classmethod
    def read(cls, model_dir: str) -> "Outcome | None":
        """That of a trial that has ended; None if it has not."""
        path = os.path.join(model_dir, _OUTCOME)
        if not files.exists(path):
            return None
        record = json.loads(files.read_text(path))
        return cls(**{field.name: record[field.name] for field in dataclasses.fields(cls)})


class TrialRun:
    """What an evaluator is given.

    Args:
        trial: Optuna's trial.
        params: What is tried, by name.
        config: Of the study.
        model_dir: The trial's directory.

    Attributes:
        number: Which trial of the study it is, from 0.
        loop: The training that is under way, set by its hook. While there is one, steps are its
            own, and it is stopped where the pruner ends the trial.
        is_pruned: Whether the pruner has ended it.
        final_result: What was reported as the final result; None if nothing was.
    """

    def __init__(
        self,
        trial: optuna.trial.Trial,
        params: Mapping[str, Any],
        config: search_config.SearchConfig,
        model_dir: str,
    ) -> None:
        self._trial = trial
        self._num_reports = 0
        self.number = trial.number
        self.params = params
        self.config = config
        self.model_dir = model_dir
        self.loop: Loop | None = None
        self.is_pruned = False
        self.final_result: Any = None

    def report(self, value: float, step: int | None = None) -> None:
        """Reports a value on the way, such as that of an evaluation.

        In a training it asks the loop to stop if the pruner says so; elsewhere it raises.

        Args:
            value: The metric that counts. Of a study with several nothing is reported.
            step: When it was measured; by default the step of the training, or how many reports
                there were before. The same step again is ignored: a trial that was taken up repeats
                some.

        Raises:
            optuna.TrialPruned: The pruner has ended the trial.
        """
        number = float(value)
        if len(self.config.directions) > 1:
            return
        if step is None:
            step = self._num_reports if self.loop is None else self.loop.step
        self._num_reports += 1
        if step not in self._reported():
            self._trial.report(number, step)
        if self._trial.should_prune():
            self._end(f"pruned at step {step} with {number:g}")

    def report_final(self, value: Any) -> None:
        """Reports the result: a number, one for each metric, or a dict of metrics."""
        self.final_result = value

    def outcome_of(self, result: Any) -> Outcome:
        """What came of a trial that has returned.

        Args:
            result: A number, a sequence of one for each direction, or a dict of metrics.

        Raises:
            errors.OfficialLiteError: It is none of these, or lacks a metric.
        """
        if self.is_pruned:
            return Outcome(state="pruned", metrics=_metrics(result))
        values = self._values(self.final_result if self.final_result is not None else result)
        if any(math.isnan(value) for value in values):
            return Outcome(state="fail", metrics=_metrics(result), reason=f"the value is {values}")
        return Outcome(state="complete", values=values, metrics=_metrics(result))

    def _values(self, result: Any) -> list[float]:
        if self.config.final_value == "best":
            finite = [value for value in self._reported().values() if math.isfinite(value)]
            if finite:
                return [min(finite) if self.config.directions == ["minimize"] else max(finite)]
        values = list(result) if isinstance(result, Sequence) else [result]
        if isinstance(result, Mapping):
            values = [self._metric(result, name) for name in self.config.metrics]
        if result is None or len(values) != len(self.config.directions):
            raise errors.ConfigTypeError(
                f"The trial returned {result!r}; wanted {len(self.config.directions)} number(s), a "
                "dict with what `search.metric` names, or a call of `report_final_result`."
            )
        return [float(value) for value in values]

    def _metric(self, metrics: Mapping[str, Any], name: str) -> float:
        found = name if name in metrics else name.replace("|", "/")
        if found not in metrics:
            raise errors.UnknownKeyError(
                f"The trial has no metric `{name}`. {suggestions.did_you_mean(name, metrics)}"
            )
        return float(metrics[found])

    def _reported(self) -> dict[int, float]:
        return self._trial.storage.get_trial(self._trial._trial_id).intermediate_values

    def _end(self, reason: str) -> None:
        self.is_pruned = True
        if self.loop is None:
            raise optuna.TrialPruned(reason)
        self.loop.request_stop(reason)


def run_trial(evaluate: Callable[[TrialRun], Any], trial: TrialRun) -> Outcome:
    """Runs a trial to its end, and writes what came of it into its directory.

    An error fails the trial, not the study; what asks the process to stop ends both.

    Raises:
        errors.PreemptedError: A signal has asked to stop; the trial can go on later.
    """
    global _current
    _current = trial
    try:
        outcome = trial.outcome_of(evaluate(trial))
    except optuna.TrialPruned:
        outcome = Outcome(state="pruned")
    except errors.PreemptedError:
        raise
    except (Exception, SystemExit) as error:  # Whatever a trial may raise: the others shall run.
        logging.exception("Trial %d has failed.", trial.number)
        outcome = Outcome(state="fail", reason=f"{type(error).__name__}: {error}")
    finally:
        _current = None
    outcome.write(trial)
    return outcome


def current_trial() -> TrialRun | None:
    """The trial that runs now; None outside of a study."""
    return _current


def report_intermediate_result(value: float, step: int | None = None) -> None:
    """Reports a value of the trial that runs now, see `TrialRun.report`; without one logs it."""
    trial = current_trial()
    if trial is None:
        logging.info("Intermediate result: %s", value)
    else:
        trial.report(value, step)


def report_final_result(value: Any) -> None:
    """Reports what the trial that runs now has come to; without one logs it."""
    trial = current_trial()
    if trial is None:
        logging.info("Final result: %s", value)
    else:
        trial.report_final(value)


# A process runs one trial at a time, whatever threads report from it.
_current: TrialRun | None = None


def _metrics(result: Any) -> dict[str, float]:
    return dict(result) if isinstance(result, Mapping) else {}
