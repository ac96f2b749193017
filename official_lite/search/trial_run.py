"""A running trial: its parameters, its model directory and its reports."""

import copy
import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna
from absl import logging

from official_lite.common import error_report, errors, files, suggestions
from official_lite.modeling.hyperparams import params_dict
from official_lite.search import search_config

__all__ = [
    "Outcome",
    "TrialRun",
    "current_trial",
    "report_final_result",
    "report_intermediate_result",
    "run_trial",
]

_OUTCOME = "trial.json"

# The prefix of the attributes in which Optuna's halving pruners store the values that they compare
# between trials.
_RUNG = "completed_rung_"

# The user attribute with the report for which the pruner has ended the trial.
_PRUNED_AT = "pruned_at"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a trial that has ended.

    Attributes:
        state: `complete`, `pruned` or `fail`.
        values: The objective values, one for each direction; empty unless `state` is `complete`.
        metrics: All metrics that the trial returned.
        reason: Why the trial failed.
    """

    state: str
    values: Sequence[float] = ()
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    reason: str = ""

    def write(self, trial: "TrialRun") -> None:
        """Write the outcome to `trial.json` in the trial's model directory.

        The process that records or resumes the trial reads it from there.
        """
        record = {"number": trial.number, "params": trial.params, **dataclasses.asdict(self)}
        files.makedirs(trial.model_dir)
        path = os.path.join(trial.model_dir, _OUTCOME)
        files.write_text(path, files.to_json(record, indent=2) + "\n")

    @classmethod
    def read(cls, model_dir: str) -> "Outcome | None":
        """Read the outcome from a trial's model directory; return None if there is none yet.

        A damaged file is renamed and treated as missing.
        """
        path = os.path.join(model_dir, _OUTCOME)
        if not files.exists(path):
            return None
        try:
            record = files.read_json(path)
            return cls(**{field.name: record[field.name] for field in dataclasses.fields(cls)})
        except (KeyError, TypeError, ValueError) as error:
            files.set_aside(path, error)
            return None


class TrialRun:
    """A running trial, the argument of an evaluator.

    Args:
        trial: Optuna's trial.
        params: The trial's values by name.
        config: The config of the study.
        model_dir: The trial's model directory.

    Attributes:
        number: The number of the trial in the study, starting from 0.
        loop: The active `orbit.Controller`, set by its hook; None if there is none. An active loop
            provides the default step of reports, and pruning stops the loop instead of raising.
        is_pruned: Whether the pruner has ended the trial.
        final_result: The reported final result; None if nothing was reported.
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
        # The values of steps that must be reported again. Pruners may have recorded them.
        self._discarded: dict[int, float] = {}
        self.number = trial.number
        self.params = params
        self.config = config
        self.model_dir = model_dir
        self.loop: Any = None
        self.is_pruned = False
        self.final_result: Any = None

    def report(self, value: float, step: int | None = None, *, may_prune: bool = True) -> None:
        """Report an intermediate value, such as the result of an evaluation.

        If the pruner decides to end the trial, the active training loop is requested to stop.
        Without an active loop, `optuna.TrialPruned` is raised.

        Args:
            value: The value of the metric. Studies with several metrics ignore it.
            step: The step at which the value was measured. By default the step of the active loop,
                or the number of previous reports without a loop. A new value replaces the earlier
                one of the same step, and those of later steps until they are reported again: a
                resumed trial repeats some reports, and after a recovery the earlier values belong
                to a state that was discarded.
            may_prune: Whether the pruner may end the trial. Set it to False after training.

        Raises:
            optuna.TrialPruned: If the pruner ends the trial and there is no active loop.
        """
        number = float(value)
        if len(self.config.directions) > 1:
            return
        if step is None:
            step = self._num_reports if self.loop is None else self.loop.step
        step = int(step)
        self._num_reports += 1
        if step in self._stored().intermediate_values:
            self._replace(step, number)
        else:
            self._trial.report(number, step)
        if may_prune and self._should_prune(step, number):
            self._end(f"pruned: at step {step} with the value {number:g}")

    def _replace(self, step: int, value: float) -> None:
        """Replace the value of a step, which Optuna's `Trial.report` would keep.

        Recovery has also discarded the values of later steps, which Optuna can't delete. They are
        set to the same value until they are reported again.
        """
        stored = self._stored()
        storage, trial_id = self._trial.storage, self._trial._trial_id
        for later, old in stored.intermediate_values.items():
            if later == step or (later > step and later not in self._discarded):
                self._discarded.setdefault(later, old)
                storage.set_trial_intermediate_value(trial_id, later, value)
        discarded = self._discarded.pop(step)
        for name, at_rung in stored.system_attrs.items():
            if name.startswith(_RUNG) and at_rung == discarded:
                storage.set_trial_system_attr(trial_id, name, value)

    def report_final(self, value: object) -> None:
        """Report the result: a number, a sequence of one number per metric, or a metrics dict."""
        self.final_result = value

    def outcome_of(self, result: object) -> Outcome:
        """Return the outcome of a trial whose evaluator has returned `result`.

        Args:
            result: A number, a sequence with one number for each direction, or a dict of metrics.

        Raises:
            errors.OfficialLiteError: If `result` has another form or lacks a metric.
        """
        if self.is_pruned:
            return Outcome(state="pruned", metrics=_metrics(result))
        values = self._values(self.final_result if self.final_result is not None else result)
        if not all(math.isfinite(value) for value in values):
            return Outcome(
                state="fail", metrics=_metrics(result), reason=f"the value {values} is not finite"
            )
        return Outcome(state="complete", values=values, metrics=_metrics(result))

    def _values(self, result: object) -> list[float]:
        if self.config.final_value == "best":
            reported = self._stored().intermediate_values
            values = [*reported.values(), *([] if result is None else self._given(result))]
            if finite := [value for value in values if math.isfinite(value)]:
                return [min(finite) if self.config.directions == ["minimize"] else max(finite)]
        return self._given(result)

    def _given(self, result: object) -> list[float]:
        values: list[Any] = list(result) if isinstance(result, Sequence) else [result]
        if isinstance(result, Mapping):
            values = [self._metric(result, name) for name in self.config.metrics]
        if result is None or len(values) != len(self.config.directions):
            raise errors.ConfigTypeError(
                f"The trial returned {result!r}; expected {len(self.config.directions)} "
                "number(s), a dict with the metrics of `search.metric`, or a call of "
                "`report_final_result`."
            )
        return [float(value) for value in values]

    def _metric(self, metrics: Mapping[str, Any], name: str) -> float:
        found = name if name in metrics else name.replace("|", "/")
        if found not in metrics:
            raise errors.UnknownKeyError(
                f"The trial has no metric `{name}`. {suggestions.did_you_mean(name, metrics)}"
            )
        return float(metrics[found])

    def _should_prune(self, step: int, value: float) -> bool:
        """Return whether the pruner ends the trial, given `value` at `step` and all earlier values.

        Optuna's `Trial.should_prune` would use later values too, which a recovery has discarded,
        and would not see values that were replaced.

        A trial that is killed before it has ended reports the same value again when it resumes. The
        first decision then remains valid, because the halving pruners judge each step only once.
        """
        trial = copy.copy(self._stored())
        report = [step, value]
        if trial.user_attrs.get(_PRUNED_AT) == report:
            return True
        trial.intermediate_values = {
            s: v for s, v in trial.intermediate_values.items() if s <= step
        }
        study = self._trial.study
        is_pruned = study.pruner.prune(study, trial)
        if is_pruned:
            self._trial.set_user_attr(_PRUNED_AT, report)
        return is_pruned

    def _stored(self) -> optuna.trial.FrozenTrial:
        return self._trial.storage.get_trial(self._trial._trial_id)

    def _end(self, reason: str) -> None:
        self.is_pruned = True
        if self.loop is None:
            raise optuna.TrialPruned(reason)
        self.loop.request_stop(reason)


def run_trial(evaluate: Callable[[TrialRun], Any], trial: TrialRun) -> Outcome:
    """Run a trial to its end and write its outcome to its model directory.

    An error fails only the trial; the study continues. A request to stop the process and a full
    disk end both the trial and the study, because the trial did not cause them.

    Raises:
        errors.PreemptedError: If a signal requested a stop. The trial can be resumed later.
        errors.DiskFullError: If the disk is full. The trial can be resumed later.
    """
    global _current
    _current = trial
    try:
        with error_report.naming_the_resource():
            outcome = trial.outcome_of(evaluate(trial))
    except optuna.TrialPruned:
        outcome = Outcome(state="pruned")
    except (errors.PreemptedError, errors.DiskFullError):
        raise
    except (Exception, SystemExit) as error:  # An error must not end the other trials.
        logging.exception("Trial %d failed.", trial.number)
        outcome = Outcome(state="fail", reason=f"{type(error).__name__}: {error}")
    finally:
        _current = None
    outcome.write(trial)
    return outcome


def current_trial() -> TrialRun | None:
    """Return the trial that is running in this process; None outside of a study."""
    return _current


def report_intermediate_result(value: float, step: int | None = None) -> None:
    """Report an intermediate value of the current trial; outside of a trial, log it.

    See `TrialRun.report`.
    """
    if _current is None:
        logging.info("Intermediate result: %s", value)
    else:
        _current.report(value, step)


def report_final_result(value: object) -> None:
    """Report the final result of the current trial; outside of a trial, log it.

    See `TrialRun.report_final`.
    """
    if _current is None:
        logging.info("Final result: %s", value)
    else:
        _current.report_final(value)


# This variable is global rather than per thread: a process runs one trial at a time, and any of its
# threads may report.
_current: TrialRun | None = None


def _metrics(result: object) -> dict[str, float]:
    plain = params_dict.to_plain(result) if isinstance(result, Mapping) else {}
    return dict(plain)
