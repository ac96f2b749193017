"""What a run leaves in its directory besides checkpoints and metrics.

::

    model_dir/
      params.yaml                   the resolved config, without what gin bound besides it
                                    (training modes)
      params.<n>.yaml               the one before, if another one was allowed
      .lock                         who trains there, while he does
      operative_config.<mode>.gin   the same, and gin's bindings, for --gin_file
      run.json                      versions, command, seed, host, and how the run ended
      log.txt                       everything that was logged, tracebacks included
      metrics.json                  one JSON object a line for each report and each evaluation
      train/  validation/           event files
      ckpt-<step>.*                 checkpoints, see docs/checkpoints.md
      best_ckpt/                    the best one, with info.json

A job that only evaluates may look at the directory of a running training: it writes
`run.<mode>.json` and `log.<mode>.txt`. Only the chief writes. The last line of a log says how the
run ended.
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
import shlex
import socket
import sys
import time
from types import TracebackType
from typing import Any

from absl import logging

from official_lite.common import error_report, errors, files, run_mode
from official_lite.config import compatibility, gin_config, parsing
from official_lite.modeling import hyperparams
from official_lite.run import model_dir_lock

__all__ = [
    "RunRecord",
    "check_model_dir",
    "config_sha256",
    "is_finished",
    "save_gin_config",
    "versions",
]


_PACKAGES = ("official-lite", "tensorflow", "keras", "numpy", "gin-config")


class RunRecord(contextlib.AbstractContextManager["RunRecord"]):
    """Writes the record when a run starts, and how it ended when it ends.

    ::

        with RunRecord(params, mode, model_dir) as record:
            ...
            record.note(global_step=1000)
    """

    def __init__(
        self,
        params: hyperparams.Config,
        mode: str,
        model_dir: str,
        *,
        is_chief: bool = True,
        allow_config_change: bool = False,
    ) -> None:
        """Writes nothing yet.

        Args:
            params: The config of the run.
            mode: Its mode.
            model_dir: Its directory.
            is_chief: Whether this process is the one that writes; others only log how it ended.
            allow_config_change: Whether a training may go on with the checkpoints of another
                config; see `config.compatibility`. It is logged in any case.
        """
        self._params = params
        self._mode = mode
        self._model_dir = model_dir
        self._is_chief = is_chief
        self._is_training = run_mode.Mode(mode).trains
        self._allow_config_change = allow_config_change
        self._lock = contextlib.ExitStack()
        self._entries: dict[str, Any] = {}
        self._log_handler: python_logging.Handler | None = None
        self._start_time = time.time()

    @property
    def model_dir(self) -> str:
        """The model directory."""
        return self._model_dir

    def note(self, **entries: Any) -> None:
        """Adds entries to `run.json`; they are written when the run ends."""
        self._entries |= entries

    def replace_params(self, params: hyperparams.Config) -> None:
        """Records another config, such as one whose epochs have become steps."""
        self._params = params
        if self._is_chief:
            self._write_params()
            self._entries |= _entries_of(params)
            self._write()

    def __enter__(self) -> "RunRecord":
        if not self._is_chief:
            return self
        files.makedirs(self._model_dir)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self._lock.close)
            changes = self._claim() if self._is_training else []
            self._log_handler = _log_to_file(self._path("log", "txt"))
            on_failure.callback(self._close_log)
            if not self._is_training:
                compatibility.warn_of_another(self._params, self._model_dir)
            self._write_start(changes)
            on_failure.pop_all()
        return self

    def _claim(self) -> list[compatibility.Change]:
        """Makes sure that nobody else trains there, and that the config is that of before."""
        self._lock.enter_context(model_dir_lock.ModelDirLock(self._model_dir))
        # Of trainings that were killed: another job may be about to rename a file of its own.
        files.remove_temporaries(self._model_dir, lambda name: not _is_of_evaluation(name))
        return compatibility.check(
            self._params, self._model_dir, is_allowed=self._allow_config_change
        )

    def _write_start(self, changes: list[compatibility.Change]) -> None:
        if not all(change.is_harmless for change in changes):
            self._keep_old_params()
        self._write_params()
        logging.info("Command: %s", shlex.join(sys.argv))
        logging.info("Versions: %s", ", ".join(f"{n} {v}" for n, v in versions().items()))
        if others := gin_config.find_other_bindings():
            logging.warning(
                "Gin binds %s, which is no part of the config: params.yaml alone does not repeat "
                "this run. --gin_file=%s does.",
                ", ".join(others),
                os.path.join(self._model_dir, f"operative_config.{self._mode}.gin"),
            )
        self._entries = {
            "status": "running",
            "mode": self._mode,
            "argv": sys.argv,
            "config_sha256": config_sha256(self._params),
            "config_changes": [str(change) for change in changes],
            **_entries_of(self._params),
            "start_time": _timestamp(self._start_time),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "platform": platform.platform(),
            "versions": versions(),
            # As given: what became of it is in `params.yaml`.
            "params": compatibility.flatten(self._params.as_dict()),
        }
        self._write()

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        status = _status_of(error)
        self.note(
            status=status,
            exit_reason=error_report.headline(error) if error else "completed",
            end_time=_timestamp(time.time()),
            seconds=round(time.time() - self._start_time, 3),
        )
        try:
            if self._is_chief:
                self._write_end(error)
        finally:
            step = self._entries.get("global_step", 0)
            logging.info("experiment finished: status=%s step=%s", status, step)
            self._close_log()
            self._lock.close()

    def _write_end(self, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, errors.PreemptedError):
            self._log_traceback(error)
        self._write()
        # Again, since the run may have bound more of gin than was known at its start.
        save_gin_config(self._mode, self._model_dir, self._params)

    def _keep_old_params(self) -> None:
        taken = files.list_names(self._model_dir)
        number = next(n for n in itertools.count(1) if f"params.{n}.yaml" not in taken)
        old = files.read_text(os.path.join(self._model_dir, "params.yaml"))
        files.write_text(os.path.join(self._model_dir, f"params.{number}.yaml"), old)

    def _write_params(self) -> None:
        if self._is_training:
            parsing.serialize_config(self._params, self._model_dir)
        save_gin_config(self._mode, self._model_dir, self._params)

    def _write(self) -> None:
        text = json.dumps(self._entries, indent=2, default=str)
        files.write_text(self._path("run", "json"), text + "\n")

    def _path(self, name: str, extension: str) -> str:
        middle = "" if self._is_training else f".{self._mode}"
        return os.path.join(self._model_dir, f"{name}{middle}.{extension}")

    def _close_log(self) -> None:
        if self._log_handler:
            python_logging.root.removeHandler(self._log_handler)
            self._log_handler.close()

    def _log_traceback(self, error: BaseException) -> None:
        """Into the file only: on the terminal, an error is shown once, by whoever catches it."""
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
            error.add_note(f"The whole traceback is in {self._path('log', 'txt')}.")


def save_gin_config(
    filename_suffix: str, model_dir: str, params: hyperparams.Config | None = None
) -> None:
    """Writes `operative_config.<suffix>.gin`, which repeats the run when fed back to it.

    `run_experiment` writes it by itself. Without `params` (as the Model Garden calls it) a file
    that is there already is left as it is, since it holds more than gin knows.
    """
    path = os.path.join(model_dir, f"operative_config.{filename_suffix}.gin")
    if params is None:
        if not files.exists(path):
            files.makedirs(model_dir)
            files.write_text(path, gin_config.bindings())
        return
    files.write_text(path, gin_config.operative_config(params))


def is_finished(params: hyperparams.Config, mode: str, model_dir: str) -> bool:
    """Whether a training run of this directory has nothing left to do; if so, logs it.

    It has not, even if the config is another one by now; then there is a warning as well. A run
    with phases has a directory for each of them, and is not finished by itself. Needs no
    TensorFlow.
    """
    path = os.path.join(model_dir, "run.json")
    trains = run_mode.Mode(mode).trains
    if not trains or getattr(params, "phases", None) or not files.exists(path):
        return False
    try:
        record = json.loads(files.read_text(path))
    except json.JSONDecodeError:
        return False
    if not _has_reached_the_end(record, params, mode, model_dir):
        return False
    logging.info("%s is finished: nothing left to do.", model_dir)
    if record.get("config_sha256") != config_sha256(params):
        logging.warning(
            "It ran with another config than that of this command: see %s. To run this one, give "
            "it another directory, or remove that one.",
            os.path.join(model_dir, "params.yaml"),
        )
    return True


def _has_reached_the_end(record: dict[str, Any], params: Any, mode: str, model_dir: str) -> bool:
    step, train_steps = record.get("global_step"), _train_steps(params, record)
    # A run that also evaluated has trained, too; one that only trained may lack an evaluation.
    has_run = mode in (record.get("mode"), "train")
    if record.get("status") != "done" or not has_run or step is None or train_steps is None:
        return False
    has_checkpoint = files.exists(os.path.join(model_dir, f"ckpt-{step}.index"))
    return has_checkpoint and int(step) >= int(train_steps)


def _train_steps(params: Any, record: dict[str, Any]) -> int | None:
    """How long the training has to be; None if that can't be known yet."""
    if getattr(params.trainer, "train_epochs", None) is None:
        return int(params.trainer.train_steps)
    # Only the data say how long an epoch is. The same config was told so before.
    has_same_config = record.get("config_sha256") == config_sha256(params)
    return record.get("train_steps") if has_same_config else None


def config_sha256(params: hyperparams.Config) -> str:
    """A checksum that two configs share only if they say the same."""
    return hashlib.sha256(parsing.to_yaml(params).encode()).hexdigest()


def check_model_dir(model_dir: str) -> None:
    """Makes sure that a run could write there, before anything expensive. Writes nothing.

    Raises:
        errors.ConfigValueError: If it could not, or could not read it again.
    """
    if special := sorted(set(model_dir) & set("*?[\\")):
        raise errors.ConfigValueError(
            f"--model_dir={model_dir} has {' '.join(special)} in it: TensorFlow takes that for a "
            "pattern when it reads a checkpoint, and would not find it."
        )
    if files.is_remote(model_dir):
        return
    path = os.path.abspath(model_dir)
    if os.path.exists(path) and not os.path.isdir(path):
        raise errors.ConfigValueError(f"--model_dir={model_dir} is a file; wanted a directory.")
    while not os.path.exists(path):
        path = os.path.dirname(path)
    if not os.path.isdir(path) or not os.access(path, os.W_OK | os.X_OK):
        raise errors.ConfigValueError(f"--model_dir={model_dir}: can't write in {path}.")


def _is_of_evaluation(name: str) -> bool:
    """Whether a job that only evaluates writes a file, such as `run.continuous_eval.json`."""
    return any(f".{mode}." in name for mode in ("eval", "continuous_eval"))


def _log_to_file(path: str) -> python_logging.Handler | None:
    if files.is_remote(path):
        return None
    handler = python_logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.PythonFormatter())
    if not python_logging.root.handlers:
        # What absl does before its first line. It would take our handler for the terminal's.
        python_logging.basicConfig()
    # Not on absl's logger: code of the user's may have one of Python's own.
    python_logging.root.addHandler(handler)
    return handler


def _entries_of(params: hyperparams.Config) -> dict[str, Any]:
    return {
        "seed": getattr(getattr(params, "runtime", None), "seed", None),
        "train_steps": getattr(getattr(params, "trainer", None), "train_steps", None),
    }


@functools.cache
def versions() -> dict[str, str]:
    """The versions of Python and of the libraries that decide what a run computes."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _status_of(error: BaseException | None) -> str:
    if isinstance(error, errors.PreemptedError):
        return "preempted"
    return "failed" if error else "done"


def _timestamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(seconds))
