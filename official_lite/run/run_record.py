"""The record of a run in its model directory: config, command, versions, log and exit status.

::

    model_dir/
      params.yaml                   the resolved config, without gin's other bindings
                                    (training modes)
      params.<n>.yaml               earlier configs, if a config change was allowed. `params.yaml`
                                    is replaced when the first checkpoint of the new config is saved
      .lock                         held by the training process while it runs
      operative_config.<mode>.gin   the config and gin's other bindings, for --gin_file
      run.json                      versions, command, seed, host, code, packages, input files, and
                                    how the run ended
      checkpoints.chain.jsonl       checksums of records and checkpoints, see docs/verify.md
      goodput.json                  where the time went, over all starts; see common/goodput.py
      log.txt                       the complete log, including tracebacks
      metrics.json                  one JSON object per line for each report and evaluation
      train/  validation/  test/    event files
      ckpt-<step>.*                 checkpoints, see docs/checkpoints.md
      best_ckpt/                    the best checkpoint, with info.json

A job that only evaluates or predicts can use the directory of a running training job, because it
writes `run.<mode>.json`, `log.<mode>.txt` and `goodput.<mode>.json` instead. A job that predicts
holds a lock in the directory of its predictions. Only the chief writes files.
The last line of a log says how the run ended.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import itertools
import json
import logging as python_logging
import os
import platform
import re
import shlex
import socket
import sys
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from absl import logging

from official_lite.checkpoint import chain
from official_lite.common import error_report, errors, files, flags, plugins, terminal
from official_lite.config import compatibility, epochs, gin_config, parsing
from official_lite.core import config_definitions
from official_lite.data import file_patterns
from official_lite.modeling import hyperparams
from official_lite.modeling.hyperparams import yaml_io
from official_lite.run import model_dir_lock, provenance

_PACKAGES = ("official-lite", "tensorflow", "keras", "numpy", "gin-config")


# The entries of `run.json` that describe the start of a run. Their checksum is in the checksum
# chain; the other entries describe the progress and the end of the run.
_OF_START = (
    "mode",
    "argv",
    "config_sha256",
    "config_changes",
    "seed",
    "train_steps",
    "start_time",
    "host",
    "pid",
    "platform",
    "versions",
    "params",
    "model_files",
    "code",
    "environment",
    "inputs",
)

# The entries of `run.json` that a later start is compared with.
_OF_CONFIG = ("params", "model_files", "argv")

# Matches the names of checkpoint and event files, which TensorFlow opens itself.
_OF_TENSORFLOW = re.compile(r"checkpoint|.+-\d+\.(index|data-\d+-of-\d+|commit\.json)|.*tfevents.*")


class RunRecord(contextlib.AbstractContextManager["RunRecord"]):
    """Context that writes the record of a run when the run starts and completes it at the end.

    ::

        with RunRecord(params, mode, model_dir) as record:
            ...
            record.note(global_step=1000)

    Args:
        params: The config of the run.
        mode: The mode of the run.
        model_dir: The model directory.
        is_chief: Whether this process writes the record; other processes only log how the run
            ended.
        allow_config_change: Whether training may resume from checkpoints of a different config; see
            `config.compatibility`. Changes are always logged.
    """

    def __init__(
        self,
        params: config_definitions.ExperimentConfig,
        mode: str,
        model_dir: str,
        *,
        is_chief: bool = True,
        allow_config_change: bool = False,
    ) -> None:
        self._params = params
        self._mode = mode
        self._model_dir = model_dir
        self._is_chief = is_chief
        self._is_training = flags.Mode(mode).trains
        self._allow_config_change = allow_config_change
        self._lock = contextlib.ExitStack()
        self._entries: dict[str, Any] = {}
        self._earlier: dict[str, Any] = {}
        # The entries of `_OF_CONFIG` of a changed config that has not replaced the recorded one.
        self._postponed: dict[str, Any] = {}
        # A lock is required because the thread that writes checkpoints seals the record.
        self._writing = threading.RLock()
        self._line: str | None = None
        self._input_patterns: list[str] = []
        self._log_handler: python_logging.Handler | None = None
        self._start_time = time.time()

    @property
    def model_dir(self) -> str:
        """The model directory."""
        return self._model_dir

    def note(self, **entries: Any) -> None:
        """Add entries to `run.json`, which are written when the run ends."""
        with self._writing:
            self._entries |= entries

    def earlier(self, entry: str) -> dict[str, Any]:
        """Return an entry that an earlier training run in the directory has recorded, if any."""
        found = self._earlier.get(entry)
        return found if isinstance(found, dict) else {}

    def replace_params(self, params: config_definitions.ExperimentConfig) -> None:
        """Replace the recorded config, for example after epochs were converted to steps."""
        self._params = params
        if self._is_chief:
            with self._writing:
                self._publish()

    def seal(self) -> str | None:
        """Add the code, packages and input files that the run has used so far to the record.

        Call this before a checkpoint is committed. Input files may be opened after the start, for
        example by the first evaluation, so a later call may add files.

        Returns:
            The checksum of the record's line in the chain; None if this process is not the chief or
            the run does not train.
        """
        if not (self._is_chief and self._is_training):
            return None
        patterns = provenance.find_input_patterns(self._params)
        with self._writing:
            if "code" not in self._entries or patterns != self._input_patterns:
                self._input_patterns = patterns
                self._entries |= provenance.describe(patterns)
                self._adopt_config()
                self._publish()
        return self._line

    def __enter__(self) -> "RunRecord":
        if not self._is_chief:
            return self
        try:
            files.makedirs(self._model_dir)
        except OSError as error:
            raise errors.ConfigValueError(
                f"The model directory {self._model_dir} can't be created: {error}. Use a "
                "directory in which you can create files."
            ) from error
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self._lock.close)
            changes = self._claim() if self._is_training else []
            if flags.Mode(self._mode).predicts:
                self._claim_predictions()
            self._log_handler = _log_to_file(self.path("log", "txt"))
            on_failure.callback(self._close_log)
            if not self._is_training:
                compatibility.check_model(
                    self._params, self._model_dir, is_allowed=self._allow_config_change
                )
            self._write_start(changes)
            on_failure.pop_all()
        return self

    def _claim(self) -> list[compatibility.Change]:
        """Acquire the lock of the model directory, and check the config against the checkpoints."""
        _require_regular_files(self._model_dir)
        self._lock.enter_context(model_dir_lock.ModelDirLock(self._model_dir))
        # Remove the temporary files of killed training processes. Keep the temporary files of
        # evaluation jobs, which may be about to rename them.
        files.remove_temporaries(self._model_dir, lambda name: not _is_of_evaluation(name))
        changes = compatibility.check(
            self._params, self._model_dir, is_allowed=self._allow_config_change
        )
        # Repair the chain only after the check, because the check looks for listed checkpoints that
        # are gone, and the repair records them as removed.
        chain.repair(self._model_dir)
        return changes

    def _check_inputs(self) -> Any:
        """Warn if the input files of a resumed run have changed, and return the recorded files.

        Without checkpoints there is nothing to compare, and the result is None.
        """
        is_resumed = self._is_training and chain.listed(chain.read(self._model_dir))
        inputs = self._earlier.get("inputs") if is_resumed else None
        used = provenance.find_training_patterns(self._params)
        try:
            recorded = [each for each in inputs or () if each["pattern"] in used]
            differences = list(provenance.find_input_differences(recorded))
        except (AttributeError, KeyError, TypeError, ValueError):
            differences = []  # The record is damaged, which `tools verify` reports.
        if differences:
            logging.warning(
                "Input files have changed since this run saved its last checkpoint, so its results "
                "will differ from those of an uninterrupted run. Changed: %s: %s -> %s%s. Restore "
                "the files, or start a new run in another `model_dir`. To see all changes, run "
                "`python -m official_lite.tools verify %s`.",
                *differences[0],
                f" (and {len(differences) - 1} more)" if differences[1:] else "",
                self._model_dir,
            )
        return inputs

    def _claim_predictions(self) -> None:
        """Acquire the lock of the predictions directory."""
        directory = predictions_dir(self._params, self._model_dir)
        files.makedirs(directory)
        lock = model_dir_lock.ModelDirLock(
            directory, activity="predicting", field="prediction.output_dir"
        )
        self._lock.enter_context(lock)

    def _write_start(self, changes: list[compatibility.Change]) -> None:
        if self._is_training:
            self._earlier = compatibility.read_run(self._model_dir)
        inputs = self._check_inputs()
        evaluated = [str(change) for change in changes if _changes_evaluations(change)]
        if evaluated and flags.Mode(self._mode).evaluates:
            logging.warning(
                "The validation data differ from those of the last start (%s), but the best "
                "checkpoint and early stopping compare new evaluations with earlier ones. To find "
                "the best checkpoint anew, set another `trainer.best_checkpoint_export_subdir`, or "
                "another `directory` of the hook `best_checkpoint`. For early stopping, increase "
                "`patience`.",
                ", ".join(evaluated),
            )
        argv = [yaml_io.mask_passwords(argument) for argument in sys.argv]
        logging.info("Command: %s", shlex.join(argv), extra=terminal.DETAIL)
        logging.info(
            "Versions: %s",
            ", ".join(f"{n} {v}" for n, v in versions().items()),
            extra=terminal.DETAIL,
        )
        if others := gin_config.find_other_bindings():
            logging.warning(
                "Gin binds %s, which is not part of the config, so params.yaml alone can't repeat "
                "this run. Use --gin_file=%s (in Python: `gin.parse_config_file`).",
                ", ".join(others),
                os.path.join(self._model_dir, f"operative_config.{self._mode}.gin"),
            )
        self._entries = {
            "status": "running",
            "mode": self._mode,
            "argv": argv,
            "config_sha256": config_sha256(self._params),
            "config_changes": [str(change) for change in changes],
            "start_time": _timestamp(self._start_time),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "platform": platform.platform(),
            "versions": versions(),
            # The config before it was resolved; `params.yaml` has the resolved config.
            "params": compatibility.flatten(epochs.given(self._params).as_dict()),
            "model_files": compatibility.model_files(self._params, self._earlier),
            # Keep the recorded input files. Otherwise a start that ends before its first checkpoint
            # would hide that the files have changed.
            **({"inputs": inputs} if inputs else {}),
        }
        if not all(change.is_harmless for change in changes):
            # The existing checkpoints belong to the recorded config. Keep that config until this
            # start saves a checkpoint, because this start may fail before that, for example if its
            # optimizer does not match.
            self._postponed = {name: self._entries.pop(name) for name in _OF_CONFIG}
            kept = self._earlier.keys() & self._postponed.keys()
            self._entries |= {name: self._earlier[name] for name in kept}
        self._publish()

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        is_preempted = isinstance(error, errors.PreemptedError)
        status = "preempted" if is_preempted else "failed" if error else "done"
        self.note(
            status=status,
            exit_reason=(
                error_report.headline(error)
                if error
                else self._entries.get("exit_reason", "completed")
            ),
            end_time=_timestamp(time.time()),
            seconds=round(time.time() - self._start_time, 3),
        )
        try:
            if self._is_chief:
                self._write_end(error)
        finally:
            step = self._entries.get("global_step", 0)
            logging.info("Experiment finished: status=%s, step=%s.", status, step)
            self._close_log()
            self._lock.close()
            file_patterns.forget()

    def _write_end(self, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, errors.PreemptedError):
            self._log_traceback(error)
        try:
            if self._postponed and error is None:
                self._adopt_config()
                self._publish()
            self._write()
            # Write gin's config again, because the run may have added bindings.
            if not self._postponed:
                save_gin_config(self._mode, self._model_dir, self._params)
        except OSError as second:
            # Raise only the run's error if there is one, because both errors often have the same
            # cause, such as a full disk.
            if error is None:
                raise
            logging.warning("The end of the run could not be recorded: %s", second)

    def _adopt_config(self) -> None:
        """Let a changed config replace the recorded one, which is kept as `params.<n>.yaml`."""
        if self._postponed:
            self._keep_old_params()
            self._entries |= self._postponed
            self._postponed = {}

    def _keep_old_params(self) -> None:
        taken = files.list_names(self._model_dir)
        number = next(n for n in itertools.count(1) if f"params.{n}.yaml" not in taken)
        old = files.read_text(os.path.join(self._model_dir, "params.yaml"))
        files.write_text(os.path.join(self._model_dir, f"params.{number}.yaml"), old)

    def _publish(self) -> None:
        """Write the record; in training, first append its line to the chain.

        In this order, no written record is ever missing from the chain.
        """
        params = self._params
        is_in_steps = epochs.given(params) is not params
        if self._is_training and not is_in_steps:
            # Keep the recorded steps until this start knows the length of an epoch. Otherwise, if
            # it ended before that, the model in this directory could not be loaded.
            recorded = compatibility.recorded_steps(params, self._model_dir)
            params = epochs.resolve(params, recorded=recorded) if recorded else params
        self._entries |= {"seed": params.runtime.seed, "train_steps": params.trainer.train_steps}
        if self._is_training:
            path = os.path.join(self._model_dir, "params.yaml")
            config = files.read_text(path) if self._postponed else parsing.masked_yaml(params)
            entries = {
                "start_time": self._entries["start_time"],
                "params_sha256": params_sha256(config),
                "run_sha256": start_sha256(self._entries),
                **provenance.summarize(self._entries),
            }
            self._line = chain.append(self._model_dir, "record", entries)
            files.write_text(path, config)
        if not self._postponed:
            save_gin_config(self._mode, self._model_dir, params)
        self._write()

    def _write(self) -> None:
        text = json.dumps(self._entries, indent=2, default=str)
        files.write_text(self.path("run", "json"), text + "\n")

    def path(self, name: str, extension: str) -> str:
        """Return the path of a file of the record; jobs that don't train have their own files."""
        middle = "" if self._is_training else f".{self._mode}"
        return os.path.join(self._model_dir, f"{name}{middle}.{extension}")

    def _close_log(self) -> None:
        if self._log_handler:
            python_logging.root.removeHandler(self._log_handler)
            self._log_handler.close()

    def _log_traceback(self, error: BaseException) -> None:
        """Write the traceback to the log file only; the caller shows the error on the terminal."""
        if self._log_handler is None:
            return
        told = error_report.unwrapped(error)
        record = logging.get_absl_logger().makeRecord(
            "absl",
            python_logging.ERROR,
            __file__,
            0,
            "The run failed.",
            (),
            (type(told), told, error.__traceback__),
        )
        self._log_handler.handle(record)
        if not isinstance(error, errors.OfficialLiteError):
            error.add_note(f"The full traceback is in {self.path('log', 'txt')}.")


def predictions_dir(params: config_definitions.ExperimentConfig, model_dir: str) -> str:
    """Return the directory to which `--mode=predict` writes.

    Raises:
        errors.ConfigValueError: If a restriction is set and the directory is outside `model_dir`.
    """
    output_dir: str = params.prediction.output_dir
    if not plugins.stays_inside(output_dir):
        plugins.refuse(
            output_dir,
            f"`prediction.output_dir` is {output_dir!r}, which is outside the model directory",
            "Expected a relative path without `..`. Name another directory on your own command "
            "line: --set=prediction.output_dir=DIRECTORY",
        )
    # `os.path.join` returns an absolute path unchanged, but not a remote path.
    return output_dir if files.is_remote(output_dir) else os.path.join(model_dir, output_dir)


def save_gin_config(
    filename_suffix: str, model_dir: str, params: hyperparams.Config | None = None
) -> None:
    """Write `operative_config.<suffix>.gin`, which repeats the run if passed as `--gin_file`.

    `run_experiment` writes this file automatically. Without `params`, as in the Model Garden's
    calls, an existing file is not overwritten, because it also contains the config of the run.
    """
    path = os.path.join(model_dir, f"operative_config.{filename_suffix}.gin")
    if params is None:
        if not files.exists(path):
            files.makedirs(model_dir)
            files.write_text(path, yaml_io.mask_passwords(gin_config.bindings()))
        return
    files.write_text(path, yaml_io.mask_passwords(gin_config.operative_config(params)))


def is_finished(
    params: config_definitions.ExperimentConfig,
    mode: str,
    model_dir: str,
    *,
    allow_config_change: bool = False,
    accepts_stops: bool = False,
) -> bool:
    """Return whether the training run in this directory is finished; if so, log it.

    A run with phases is never finished in this sense, because each phase has its own directory.
    This function does not need TensorFlow.

    Args:
        params: The config of the run.
        mode: The mode of the run.
        model_dir: The model directory.
        allow_config_change: Whether a run of another config is accepted as finished.
        accepts_stops: Whether a run that was stopped before its last step, for example by early
            stopping, is finished while its config is unchanged.

    Raises:
        errors.ConfigValueError: If the run is finished, but its config or a model file has changed
            in a way that affects the training; see `config.compatibility`.
    """
    path = os.path.join(model_dir, "run.json")
    trains = flags.Mode(mode).trains
    if not trains or params.phases or not files.exists(path):
        return False
    try:
        record = files.read_json(path)
    except ValueError as error:
        logging.warning("%s can't be read and will be rewritten: %s", path, error)
        return False
    if not _has_reached_the_end(record, params, mode, model_dir, accepts_stops):
        return False
    # Check the config even if it is unchanged, because a file that it names may have changed.
    compatibility.check(params, model_dir, is_allowed=allow_config_change)
    end = f"step {record['global_step']} of {_train_steps(params, record)}"
    logging.info("The run in %s is already finished: %s. Nothing to do.", model_dir, end)
    return True


def _has_reached_the_end(
    record: dict[str, Any],
    params: config_definitions.ExperimentConfig,
    mode: str,
    model_dir: str,
    accepts_stops: bool,
) -> bool:
    step, train_steps = record.get("global_step"), _train_steps(params, record)
    # A finished run of any training mode also satisfies the mode `train`, but a run in the mode
    # `train` lacks the evaluations that other modes require.
    has_run = mode in (record.get("mode"), "train")
    if record.get("status") != "done" or not has_run or step is None or train_steps is None:
        return False
    if compatibility.other_experiment(record):
        return False
    if not files.exists(os.path.join(model_dir, f"ckpt-{step}.index")):
        return False
    is_stopped = accepts_stops and _was_stopped(record, params)
    return is_stopped or int(step) >= int(train_steps)


def _was_stopped(record: dict[str, Any], params: config_definitions.ExperimentConfig) -> bool:
    """Return whether a run of the same config was stopped for good.

    A pruned run does not count: it must be resumed to report to its study that it was pruned.
    """
    kind = str(record.get("exit_reason")).partition(":")[0]
    has_same_config = record.get("config_sha256") == config_sha256(params)
    return kind in ("early_stopping", "stop_requested") and has_same_config


def _train_steps(params: config_definitions.ExperimentConfig, record: dict[str, Any]) -> int | None:
    """Return the required number of training steps; None if it can't be known yet."""
    if params.trainer.train_epochs is None:
        return int(params.trainer.train_steps)
    # The number of steps depends on the data. If the config is unchanged, use the number that the
    # earlier run recorded.
    has_same_config = record.get("config_sha256") == config_sha256(params)
    return record.get("train_steps") if has_same_config else None


def config_sha256(params: hyperparams.Config) -> str:
    """Return a checksum of a config; two configs share it only if all their values are equal."""
    return hashlib.sha256(parsing.to_yaml(params).encode()).hexdigest()


def params_sha256(text: str) -> str:
    """Return the checksum of the text of `params.yaml`, as recorded in the chain."""
    return hashlib.sha256(text.encode()).hexdigest()


def start_sha256(entries: Mapping[str, Any]) -> str:
    """Return the checksum of the `run.json` entries about the start, as recorded in the chain."""
    fixed = {name: entries[name] for name in _OF_START if name in entries}
    return chain.checksum(json.loads(json.dumps(fixed, default=str)))


def check_model_dir(model_dir: str) -> None:
    """Check that a run can write to `model_dir`, without writing anything.

    Raises:
        errors.ConfigValueError: If the run can't write to `model_dir`, or if TensorFlow could not
            find checkpoints there.
    """
    if not model_dir:
        raise errors.ConfigValueError(
            "--model_dir is empty; expected a directory, which is created if it is missing. Is a "
            "variable of your script unset?"
        )
    if special := sorted(set(model_dir) & set("*?[\\")):
        raise errors.ConfigValueError(
            f"The model directory {model_dir} contains {' '.join(special)}, which TensorFlow "
            "interprets as a file pattern, so it would not find the checkpoints. Rename the "
            "directory."
        )
    if files.is_remote(model_dir):
        return
    path = os.path.abspath(model_dir)
    if os.path.exists(path) and not os.path.isdir(path):
        raise errors.ConfigValueError(
            f"The model directory {model_dir} is a file; expected a directory. Use another path."
        )
    while not os.path.exists(path):
        path = os.path.dirname(path)
    if not os.path.isdir(path) or not os.access(path, os.W_OK | os.X_OK):
        raise errors.ConfigValueError(
            f"The model directory {model_dir} can't be used, because the directory {path} is not "
            "writable. Use a directory in which you can create files."
        )


def _require_regular_files(model_dir: str) -> None:
    """Check that files opened by TensorFlow are regular; opening other files may fail or block."""
    if files.is_remote(model_dir):
        return
    paths = [os.path.join(model_dir, name) for name in files.list_names(model_dir)]
    for directory in [model_dir, *filter(os.path.isdir, paths)]:
        for name in files.list_names(directory):
            if _OF_TENSORFLOW.fullmatch(name):
                files.require_regular(os.path.join(directory, name))


def _is_of_evaluation(name: str) -> bool:
    """Return whether a file, such as `run.eval.json`, belongs to a job that does not train."""
    return any(f".{mode}." in name for mode in flags.Mode if not mode.trains)


def _changes_evaluations(change: compatibility.Change) -> bool:
    """Return whether evaluations before and after a change may measure other examples."""
    if re.fullmatch(r"trainer\.validation_steps|task\.task_routines.*\.eval_steps", change.path):
        return True
    # Fields that are harmless even in the training data affect only the speed.
    path = change.path.replace(".validation_data", ".train_data")
    return path != change.path and not compatibility.is_harmless(path)


class _LogFile(python_logging.FileHandler):
    """Log handler that warns once on the terminal if lines can't be written, and drops them."""

    _is_losing = False

    def handleError(self, record: python_logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._is_losing:
            self._is_losing = True
            terminal.say(f"Can't write {self.baseFilename}, so lines are lost: {error}")

    def close(self) -> None:
        # Closing flushes the buffer, which fails again if the disk is still full.
        with contextlib.suppress(OSError):
            super().close()


def _log_to_file(path: str) -> python_logging.Handler | None:
    if files.is_remote(path):
        return None
    with files.open_file(path, "a"):
        pass  # Opening the file raises a clear error if it can't be appended to.
    handler = _LogFile(path, encoding="utf-8")
    handler.setFormatter(logging.PythonFormatter())
    if not python_logging.root.handlers:
        # Before its first message, absl calls `basicConfig`, which adds a terminal handler. absl
        # calls it only if the root logger has no handler. The file handler would prevent this
        # call, so make the call here.
        python_logging.basicConfig()
    # The handler is added to the root logger instead of absl's logger, because user code may use
    # Python's loggers.
    python_logging.root.addHandler(handler)
    return handler


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that affect the results of a run."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _timestamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(seconds))
