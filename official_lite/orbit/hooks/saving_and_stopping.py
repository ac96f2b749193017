"""Metrics that hooks watch, and hooks that keep results: early stops, best checkpoints, exports."""

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from official_lite import telemetry
from official_lite.checkpoint import best_checkpoints, commit, directories
from official_lite.common import errors, files, nested_dict, suggestions, terminal
from official_lite.modeling import model_export
from official_lite.modeling.optimization import ema_optimizer
from official_lite.orbit import runner, utils
from official_lite.orbit.hooks.hook import Hook, output_directory

_MAXIMIZES = {
    "minimize": False,
    "min": False,
    "lower": False,
    "maximize": True,
    "max": True,
    "higher": True,
}

# Words in a metric's name that suggest that lower values are better, and words that suggest that
# higher values are better. If a name has words of both kinds, such as `brier_score`, lower values
# are better.
_LOWER = re.compile(
    "loss|losses|err|error|errors|mae|mse|rmse|mape|smape|msle|perplexity|ppl|bits|bpc|bpb|bpd"
    "|divergence|kl|distance|cost|regret|entropy|crossentropy|nll|hinge|logcosh|poisson|fid|kid"
    "|wer|cer|ter|eer|ece|brier|deviance|mistakes|false|misses|penalty|hausdorff"
)
_HIGHER = re.compile(
    "acc|accuracy|auc|auroc|auprc|roc|prc|ap|map|ar|mar|precision|recall|f1|f2|fbeta|fmeasure"
    "|fscore|score|iou|io|miou|dice|jaccard|bleu|rouge|meteor|cider|spice|r2|kappa|mcc|psnr|ssim"
    "|ndcg|dcg|mrr|hit|hits|reward|return|correlation|corr|similarity|sensitivity|specificity"
    "|likelihood|top|correct|true|pck"
)


def maximizes(name: str, direction: str = "", *, default: str) -> bool:
    """Return whether larger values of a metric are better.

    Args:
        name: The name of the metric. For nested metrics, only its last component is used.
        direction: `minimize` (also `min`, `lower`) or `maximize` (also `max`, `higher`). If it is
            empty, the words in the name decide: `loss` and `error` are minimized; `acc`, `auc`,
            `f1` and the like are maximized.
        default: The direction to use, with a warning, if `direction` is empty and the name suggests
            none.

    Raises:
        errors.ConfigValueError: The direction is unknown.
    """
    if direction and direction not in _MAXIMIZES:
        raise errors.ConfigValueError(
            f"The direction of `{name}` is {direction!r}; expected `minimize` or `maximize`. "
            + suggestions.did_you_mean(str(direction), _MAXIMIZES)
        )
    said = _said_by(name)
    if not direction and said is None:
        terminal.warn_once(
            "The name of the metric `%s` does not show whether higher or lower values are better, "
            "so the direction `%s` is used. Set `direction` of the hook, or "
            "`trainer.best_checkpoint_metric_comp`.",
            name,
            default,
        )
    if direction and said not in (None, _MAXIMIZES[direction]):
        terminal.warn_once(
            "The direction of the metric `%s` is set to `%s`, but its name suggests that %s values "
            "are better. If the name is right, change or remove the direction.",
            name,
            direction,
            "higher" if said else "lower",
        )
    return _MAXIMIZES[direction or default] if direction or said is None else said


def _said_by(name: str) -> bool | None:
    """Return whether a metric's name suggests that higher values are better; None if unknown."""
    last = re.split(r"[/|]", name)[-1]
    words = re.findall(r"[a-z]+\d*", re.sub(r"([a-z])([A-Z])", r"\1_\2", last).lower())
    # A number may be part of a word, as in `f1`, or a suffix, as in `auc_1` and `hits10`. Look for
    # each word with and without its number.
    found = {*words, *(word.rstrip("0123456789") for word in words)}
    if any(map(_LOWER.fullmatch, found)) or {"negative", "log"} <= found:
        return False
    return True if any(map(_HIGHER.fullmatch, found)) else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence that suggests a metric of an evaluation, also for Keras' `val_` names."""
    names = list(known)
    bare = name.removeprefix("val_")
    for candidate in (bare, f"validation_{bare}"):
        if candidate in names and candidate != name:
            return f"Did you mean `{candidate}`?"
    return suggestions.did_you_mean(name, names)


def find_metric(name: str, logs: Mapping[str, Any]) -> Any:
    """Return the value of a metric in the logs of an evaluation.

    Args:
        name: A key of the logs. `a/b` or `a|b` means key `b` of the dictionary under `a`.
        logs: The logs.

    Raises:
        errors.UnknownKeyError: The metric is missing.
    """
    flat = nested_dict.flatten_nested_dict(logs, "/")
    found = name if name in flat else name.replace("|", "/")
    if found not in flat:
        raise errors.UnknownKeyError(
            f"The evaluation has no metric `{name}`. {did_you_mean(found, flat)}"
        )
    return flat[found]


class WatchedMetric:
    """Finds a metric in the logs of an evaluation and compares its values.

    Args:
        name: A key of the logs. `a/b` or `a|b` means key `b` of the dictionary under `a`.
        direction: As in `maximizes`.
        default: As in `maximizes`.

    Raises:
        errors.ConfigValueError: The direction is unknown.
    """

    def __init__(self, name: str, direction: str = "", *, default: str = "maximize") -> None:
        self.name = name
        self.maximizes = maximizes(name, direction, default=default)

    @property
    def direction(self) -> str:
        """The direction of better values: `minimize` or `maximize`."""
        return "maximize" if self.maximizes else "minimize"

    def value(self, logs: Mapping[str, Any]) -> float:
        """Return the value of the metric in `logs`.

        Raises:
            errors.UnknownKeyError: The metric is missing.
            errors.ConfigTypeError: The metric is not a single number.
        """
        # JSON files record a non-finite value as null, which becomes NaN here.
        array = np.asarray(utils.get_value(find_metric(self.name, logs)), dtype=float)
        if array.size != 1:
            raise errors.ConfigTypeError(
                f"The metric `{self.name}` has the shape {array.shape}; expected a single number. "
                "Choose a metric with one value."
            )
        return float(array.reshape(()))

    def record_with_value(self, record: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Return the record of an earlier evaluation, or `None` if it lacks the metric.

        An earlier run may have watched another metric. Its record may therefore lack this one, or
        contain None, which stands for a value that was not finite.
        """
        flat = nested_dict.flatten_nested_dict(record or {}, "/")
        value = flat.get(self.name, flat.get(self.name.replace("|", "/")))
        return None if value is None else record

    def is_improvement(self, logs: Mapping[str, Any], best: Mapping[str, Any] | None) -> bool:
        """Return whether an evaluation beats the best one so far.

        If the metric has the same value in both evaluations, the lower `validation_loss` in the
        dictionary that contains the metric decides.

        Args:
            logs: The logs of the evaluation.
            best: The logs of the best evaluation; None if there is none.
        """
        value = self.value(logs)
        than = None if best is None else self.value(best)
        return self.is_better(value, than) or (
            best is not None and value == than and _loss(self.name, logs) < _loss(self.name, best)
        )

    def is_better(self, value: float, than: float | None, by_more_than: float = 0.0) -> bool:
        """Return whether `value` beats `than`.

        Any finite value beats `None` and a value that is not finite. NaN and infinity never beat
        anything.

        Args:
            value: The measured value.
            than: The value to compare with.
            by_more_than: Smaller or equal differences do not count.
        """
        if not np.isfinite(value):
            return False
        if than is None or not np.isfinite(than):
            return True
        gain = value - than if self.maximizes else than - value
        return gain > by_more_than


def _loss(name: str, logs: Mapping[str, Any]) -> float:
    """Return the `validation_loss` from the dictionary that contains the metric `name`.

    Returns:
        NaN, which never counts as better, if there is no such loss.
    """
    *parents, _ = re.split(r"[/|]", name)
    flat = nested_dict.flatten_nested_dict(logs, "/")
    value = utils.get_value(flat.get("/".join([*parents, "validation_loss"])))
    return math.nan if value is None or np.size(value) != 1 else float(np.reshape(value, ()))


class EarlyStopping(Hook):
    """Requests a stop after `patience` consecutive evaluations without an improvement.

    The state is stored in checkpoints. A run that was killed and resumed therefore stops at the
    same step as an uninterrupted one. A run that was stopped early does not continue when it is
    started again, unless `patience` is increased. A non-finite metric value is never an
    improvement.

    Args:
        metric: The name of the metric in the evaluation logs. Use `a/b` or `a|b` for nested
            metrics.
        patience: The number of evaluations without an improvement that ends training.
        min_delta: An improvement must be larger than this value.
        direction: `minimize` or `maximize`. By default, the name of the metric decides: `loss` and
            `error` are minimized, `accuracy`, `auc` and the like are maximized. If the name
            suggests no direction, the metric is minimized.
        baseline: No evaluation counts as an improvement until the metric beats this value.
        start_step: Evaluations before this step are ignored.

    Raises:
        errors.ConfigValueError: An argument is out of range.
    """

    def __init__(
        self,
        metric: str,
        patience: int,
        min_delta: float = 0.0,
        direction: str = "",
        baseline: float | None = None,
        start_step: int = 0,
    ) -> None:
        if patience < 1 or min_delta < 0:
            raise errors.ConfigValueError(
                f"EarlyStopping requires `patience` >= 1 and `min_delta` >= 0; got {patience} and "
                f"{min_delta}."
            )
        self._metric = WatchedMetric(metric, direction, default="minimize")
        self.watched_metric = metric
        self._patience = patience
        self._min_delta = min_delta
        self._baseline = baseline
        self._start_step = start_step
        self.best_value: float | None = None
        self.best_step: int | None = None
        self._bad_evaluations = 0
        self._evaluated_step: int | None = None

    def before_train(self) -> None:
        self._stop_if_out_of_patience()

    def after_eval(self, logs: Mapping[str, Any]) -> None:
        value = self._metric.value(logs)
        # Ignore a repeated evaluation of the same step, such as when a finished run is restarted.
        if self.controller.step < self._start_step or self.controller.step == self._evaluated_step:
            return
        self._evaluated_step = self.controller.step
        self._bad_evaluations += 1
        if self._metric.is_better(value, self.best_value, self._min_delta):
            self.best_value, self.best_step = value, self.controller.step
            if self._metric.is_better(value, self._baseline, self._min_delta):
                self._bad_evaluations = 0
        self._stop_if_out_of_patience()

    def state_dict(self) -> dict[str, Any]:
        return {
            "metric": self._metric.name,
            "direction": self._metric.direction,
            "best_value": self.best_value,
            "best_step": self.best_step,
            "bad_evaluations": self._bad_evaluations,
            "evaluated_step": self._evaluated_step,
            "stopped": self._is_out_of_patience(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        own = (self._metric.name, self._metric.direction)
        # Older checkpoints have no direction.
        saved = (state["metric"], state.get("direction", self._metric.direction))
        if saved != own:
            logging.warning(
                "Early stopping now monitors `%s` (%s) instead of `%s` (%s), so its state is "
                "reset.",
                *own,
                *saved,
            )
            return
        self.best_value, self.best_step = state["best_value"], state["best_step"]
        self._bad_evaluations = state["bad_evaluations"]
        self._evaluated_step = state["evaluated_step"]

    def _is_out_of_patience(self) -> bool:
        return self._bad_evaluations >= self._patience

    def _stop_if_out_of_patience(self) -> None:
        if not self._is_out_of_patience():
            return
        best = (
            "" if self.best_value is None else f" on {self.best_value:g} at step {self.best_step}"
        )
        self.controller.request_stop(
            f"early stopping: `{self._metric.name}` has not improved{best} in "
            f"{self._bad_evaluations} evaluations"
        )


class BestCheckpoint(Hook):
    """Saves a checkpoint whenever an evaluation beats all previous ones, including earlier runs.

    The directory contains `best_ckpt-<step>`, and `info.json` with all metrics of the best
    evaluation. A resumed run discards the evaluations after its last checkpoint, because they will
    be repeated. A non-finite metric value is never the best. Of two evaluations with the same
    value, the one with the lower `validation_loss` is better. If the optimizer averages the
    weights, the averaged weights are evaluated and saved as the model.

    Args:
        metric: The name of the metric in the evaluation logs. Use `a/b` or `a|b` for nested
            metrics.
        direction: `minimize` or `maximize`. By default, the name of the metric decides: `loss` and
            `error` are minimized, `accuracy`, `auc` and the like are maximized. If the name
            suggests no direction, the metric is maximized.
        directory: The output directory, relative to the run's `model_dir` unless it is absolute.
        max_to_keep: The number of checkpoints to keep: the best one, and earlier best ones.
    """

    def __init__(
        self,
        metric: str,
        direction: str = "",
        directory: str = "best_ckpt",
        max_to_keep: int = 1,
    ) -> None:
        self._metric = WatchedMetric(metric, direction, default="maximize")
        self.watched_metric = metric
        self.metric = metric
        self.directory = directory
        self._max_to_keep = max_to_keep
        self._best: best_checkpoints.BestCheckpoints | None = None
        self._opened = ""
        # The step to which the best checkpoints must be rewound before they change; None if they
        # are up to date.
        self._rewind_to: int | None = None

    def before_train(self) -> None:
        self._rewind_to = self.controller.step
        self._open_rewound()

    def after_eval(self, logs: Mapping[str, Any]) -> None:
        best = self._open_rewound()
        value = self._metric.value(logs)
        if not self._metric.is_improvement(logs, self._best_logs()):
            return
        logging.info("Best %s so far: %g.", self._metric.name, value, extra=terminal.DETAIL)
        step = self.controller.step
        record = telemetry.Record(step=step, split="", values=telemetry.numbers(logs))
        with ema_optimizer.evaluated_state(runner.optimizer_of(self.trainer)):
            best.save(
                _checkpoint_manager(self).checkpoint,
                step,
                json.loads(telemetry.to_json(record.flat())),
            )

    def on_checkpoint(self, path: str) -> None:
        self._open().settle(commit.step_of(path))

    def state_dict(self) -> dict[str, Any]:
        # This method is called just before a checkpoint is saved. A run that restores the
        # checkpoint requires the current best checkpoint, which must therefore not be removed.
        self._open_rewound().protect()
        best = self._open().best
        return {
            "metric": self._metric.name,
            "best_value": self._best_value(),
            "best_step": None if best is None else best[best_checkpoints.STEP_KEY],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        # Rewind only if a run that is in progress restores an earlier checkpoint. At the start of
        # a run, `before_train` rewinds. Rewinding removes checkpoints, so wait until training
        # continues: after a search for a bad step, it may end instead.
        if self._best is not None and self.trainer is not None and "best_step" in state:
            step = state["best_step"]
            self._rewind_to = -1 if step is None else step

    def _best_logs(self) -> Mapping[str, Any] | None:
        """Return the results of the best evaluation, or `None` if there is none yet.

        Results of an earlier run are ignored if they do not contain the metric.
        """
        return self._metric.record_with_value(self._open().best)

    def _best_value(self) -> float | None:
        best = self._best_logs()
        return None if best is None else self._metric.value(best)

    def _open_rewound(self) -> best_checkpoints.BestCheckpoints:
        """Return the best checkpoints, without the results after the restored step."""
        best = self._open()
        if self._rewind_to is not None:
            best.rewind(self._rewind_to)
            self._rewind_to = None
        return best

    def _open(self) -> best_checkpoints.BestCheckpoints:
        """Return the best checkpoints. The first call in a run reads earlier results."""
        _checkpoint_manager(self)
        directory = output_directory(self, self.directory)
        # A hook that is used again in another run keeps the best checkpoints of that run.
        if self._best is None or directory != self._opened:
            self._opened = directory
            self._best = best_checkpoints.BestCheckpoints(
                directory, max_to_keep=self._max_to_keep, strategy=self.controller.strategy
            )
        return self._best


class PeriodicCheckpoint(Hook):
    """Saves a checkpoint every `every_n_steps` steps, and at the end.

    These checkpoints are in addition to those of the checkpoint manager's interval; each step is
    saved at most once. The controller saves them after the evaluation of the step, so they include
    the state of the hooks after that evaluation.

    Args:
        every_n_steps: The interval.

    Raises:
        errors.ConfigValueError: The interval is not positive.
    """

    def __init__(self, every_n_steps: int) -> None:
        if every_n_steps < 1:
            raise errors.ConfigValueError(
                f"`every_n_steps` of PeriodicCheckpoint is {every_n_steps}; it must be at least 1."
            )
        self._interval = every_n_steps

    def before_train(self) -> None:
        _checkpoint_manager(self)
        self.controller.checkpoint_every(self._interval)


class ExportModel(Hook):
    """Exports the model to `<directory>/<step>.keras`, or as a SavedModel to `<directory>/<step>`.

    An export is written under a temporary name first, so every export under its final name is
    complete. If the optimizer averages the weights, the averaged weights are exported.

    After a recovery from a blow-up, the next export removes the exports of later steps. A model
    with a trainable weight that is not finite is exported only at the end.

    Args:
        every_n_steps: The interval. 0 exports only at the end. Successful training always exports
            at the end.
        format: `keras` for `keras.models.load_model`, `tf_saved_model` for serving, `litert`, or
            `onnx`.
        subdir: The output directory, relative to the run's `model_dir` unless it is absolute.

    Raises:
        errors.ConfigValueError: The format is unknown.
    """

    def __init__(
        self, every_n_steps: int = 0, format: str = "keras", subdir: str = "export"
    ) -> None:
        if format not in model_export.FORMATS:
            raise errors.ConfigValueError(
                f"`format` of ExportModel is {format!r}. "
                + suggestions.did_you_mean(str(format), model_export.FORMATS)
            )
        self.every_n_steps = every_n_steps
        self._format = format
        self._subdir = subdir
        self._directory = ""
        self._exported: dict[int, str] = {}

    def before_train(self) -> None:
        self._model()
        # All workers export, because reading a variable may require all of them. Only the chief's
        # export remains.
        directory = directories.writable_directory(
            output_directory(self, self._subdir), self.controller.strategy
        )
        if directory != self._directory:
            self._directory, self._exported = directory, {}

    def after_step(self) -> None:
        if all(np.isfinite(weight).all() for weight in self._model().trainable_weights):
            self._export()
        else:
            step = self.controller.step
            logging.warning("The model of step %d is not exported: a weight is not finite.", step)

    def after_train(self, success: bool) -> None:
        # Replace an export that `after_step` wrote at this step, because an evaluation or another
        # hook may have changed the model since.
        if success and not self.controller.is_interrupted:
            self._export()

    def _export(self) -> None:
        name = f"{self.controller.step}{model_export.FORMATS[self._format]}"
        path = os.path.join(self._directory, name)
        average = ema_optimizer.averaged_weights(runner.optimizer_of(self.trainer))
        # Mute the event storage. Otherwise a model that writes scalars to the storage would be
        # saved together with the storage.
        with average, self.controller.storage.muted():
            model_export.write_model(self._model(), path, self._format)
        logging.info("Exported %s.", path)
        self._remove_discarded()
        self._exported[self.controller.step] = path

    def _remove_discarded(self) -> None:
        """Remove the exports of later steps, which a recovery has discarded.

        Exports of earlier starts are kept, because the user may have rewound the run on purpose.
        """
        for step in [step for step in self._exported if step > self.controller.step]:
            path = self._exported.pop(step)
            if files.exists(path):
                files.remove_all(path)

    def _model(self) -> keras.Model:
        model = runner.model_of(self.trainer)
        if not isinstance(model, keras.Model):
            raise errors.ConfigValueError(
                "ExportModel requires a trainer whose `model` is a Keras model; the `model` of "
                f"{type(self.trainer).__name__} is {type(model).__name__}. Remove the hook, or set "
                "`model` to a Keras model."
            )
        return model


def _checkpoint_manager(hook: Hook) -> tf.train.CheckpointManager:
    manager = hook.controller.checkpoint_manager
    if manager is None:
        raise errors.ConfigValueError(
            f"{type(hook).__name__} requires a `checkpoint_manager`. Pass one to `Controller`."
        )
    return manager
