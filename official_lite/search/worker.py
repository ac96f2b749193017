"""The worker of a study, which runs one trial after the other, and the processes of a study."""

import contextlib
import dataclasses
import math
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from types import FrameType
from typing import Any

import optuna
from absl import logging
from optuna.trial import FrozenTrial, TrialState

from official_lite.common import error_report, errors, files, plugins, preemption
from official_lite.config import gin_config
from official_lite.run import model_dir_lock
from official_lite.search import results, samplers, search_config, storage
from official_lite.search.search_config import Space
from official_lite.search.trial_run import Outcome, TrialRun, run_trial

__all__ = [
    "StudyJob",
    "TrialLocks",
    "describe_end",
    "ended_with_us",
    "has_broken_off_trials",
    "is_trained_in",
    "num_begun",
    "raise_if_stopped",
    "raise_on_sigterm",
    "run_one",
    "run_worker",
    "start_process",
    "wait_for_any",
]

_STATES = {
    "complete": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "fail": TrialState.FAIL,
}
# User attributes that count how often a trial was started, and how often a request or a full disk
# stopped it. The difference is the number of times that its process was killed.
_STARTS = "starts"
_STOPS = "stops"
_HOST = "host"
_SECONDS_BETWEEN_TRIES = 0.05


class TrialLocks:
    """The locks of a study: one per trial, held by its worker, and one for choosing trials.

    The locks are model directory locks, which detect that their process has died: immediately on
    the same host, after a few seconds from another host.

    Args:
        study_dir: The directory of the study.
    """

    def __init__(self, study_dir: str) -> None:
        self._directory = os.path.join(study_dir, "claims")

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the lock for choosing trials.

        While the context is active, no other worker chooses a trial. Therefore no trial starts
        twice, and the study never starts more trials than configured.
        """
        while (lock := self._lock("turn")) is None:
            time.sleep(_SECONDS_BETWEEN_TRIES)
        with lock:
            yield

    def claim(self, number: int) -> contextlib.AbstractContextManager[object] | None:
        """Claim a trial for this worker.

        Args:
            number: The number of the trial.

        Returns:
            A context manager that holds the claim until it exits, or None if another worker runs
            the trial.
        """
        return self._lock(f"{number:04d}")

    def _lock(self, name: str) -> contextlib.AbstractContextManager[object] | None:
        directory = os.path.join(self._directory, name)
        files.makedirs(directory)
        with contextlib.ExitStack() as stack, contextlib.suppress(errors.ModelDirBusyError):
            stack.enter_context(model_dir_lock.ModelDirLock(directory))
            return stack.pop_all()
        return None


def is_trained_in(model_dir: str) -> bool:
    """Return whether a process trains in `model_dir`, such as one that outlived its worker."""
    files.makedirs(model_dir)
    try:
        with model_dir_lock.ModelDirLock(model_dir):
            return False
    except errors.ModelDirBusyError:
        return True


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyJob:
    """The description of a study that is passed to its workers.

    Attributes:
        evaluator: Callable that runs a trial: it takes a `TrialRun` and returns the metrics.
        config: The config of the study.
        study_dir: The directory of the study.
    """

    evaluator: Callable[[TrialRun], Any]
    config: search_config.SearchConfig
    study_dir: str


def run_worker(job: StudyJob) -> None:
    """Run trials until the study has all its trials or the space is exhausted.

    Interrupted trials of this host are resumed first, in their model directories. Those of other
    hosts are resumed last.

    Raises:
        errors.PreemptedError: If a signal requested a stop. The current trial can be resumed later.
        errors.DiskFullError: If the disk is full. The current trial can be resumed later.
    """
    space = Space(job.config.space)
    sampler = samplers.create_sampler(job.config, space)
    pruner = samplers.create_pruner(job.config)
    study = storage.open_study(job.config, job.study_dir, sampler, pruner)
    queue = _Queue(job, study, space)
    # Experiment trials catch signals themselves, and their handlers take precedence over this one.
    with raise_on_sigterm():
        while (taken := queue.take()) is not None:
            trial, claim = taken
            with claim:
                try:
                    outcome = _run(job, trial, space)
                except (errors.PreemptedError, errors.DiskFullError, KeyboardInterrupt):
                    # The trial did not cause this interruption, so it must not count as a kill. If
                    # the disk is full, writing the count may fail, too.
                    with error_report.naming_the_resource():
                        _count(trial, _STOPS)
                    raise
                _tell(study, trial.number, outcome)
            results.write(study, space, job.config, job.study_dir)


def num_begun(study: optuna.Study) -> int:
    """Return how many times trials were started, including resumed trials."""
    trials = study.get_trials(deepcopy=False)
    return sum(trial.user_attrs.get(_STARTS, 0) for trial in trials)


def has_broken_off_trials(study: optuna.Study, study_dir: str) -> bool:
    """Return whether there is an interrupted trial that no worker has resumed."""
    owners = TrialLocks(study_dir)
    with owners.turn():
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            claim = owners.claim(trial.number)
            if claim is not None:
                with claim:
                    return True
    return False


class _Queue:
    """Queue of the trials that a worker may run."""

    def __init__(self, job: StudyJob, study: optuna.Study, space: Space) -> None:
        self._job = job
        self._study = study
        self._space = space
        self._claims = TrialLocks(job.study_dir)
        self._num_trials = samplers.num_points(job.config, space)

    def take(self) -> tuple[optuna.trial.Trial, contextlib.AbstractContextManager[object]] | None:
        """Return the next trial and the context manager of its claim; None if no trial is left."""
        with self._claims.turn():
            # Resume trials of other hosts last, because checking their locks takes seconds.
            return self._broken_off(socket.gethostname()) or self._new() or self._broken_off()

    def _new(self) -> tuple[optuna.trial.Trial, contextlib.AbstractContextManager[object]] | None:
        if len(self._study.get_trials(deepcopy=False)) >= self._num_trials:
            return None
        trial = self._study.ask()
        claim = self._claims.claim(trial.number)
        if claim is None:
            raise errors.ModelDirBusyError(
                f"Another process is running trial {trial.number} in {self._job.study_dir}. "
                "Use another `model_dir`."
            )
        with contextlib.ExitStack() as on_failure:
            on_failure.enter_context(claim)
            _note_start(trial)
            self._space.suggest(trial)
            held = on_failure.pop_all()
        return trial, held

    def _broken_off(
        self, host: str | None = None
    ) -> tuple[optuna.trial.Trial, contextlib.AbstractContextManager[object]] | None:
        for number, running in self._running().items():
            if host is not None and running.user_attrs.get(_HOST, host) != host:
                continue
            claim = self._claims.claim(number)
            if claim is None:
                continue
            with contextlib.ExitStack() as unless_taken:
                unless_taken.enter_context(claim)
                # Read the trial again: its previous owner may have ended it before releasing the
                # claim.
                frozen = self._running().get(number)
                if frozen is not None and self._may_go_on(frozen):
                    return self._reopen(frozen), unless_taken.pop_all()
        return None

    def _running(self) -> dict[int, FrozenTrial]:
        trials = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        return {trial.number: trial for trial in trials}

    def _may_go_on(self, frozen: FrozenTrial) -> bool:
        if is_trained_in(results.trial_dir(self._job.study_dir, frozen.number)):
            return False
        kills = frozen.user_attrs.get(_STARTS, 0) - frozen.user_attrs.get(_STOPS, 0)
        ended = Outcome.read(results.trial_dir(self._job.study_dir, frozen.number))
        if kills < self._job.config.max_starts or ended is not None:
            return True
        reason = f"its process was killed {kills} times"
        _tell(self._study, frozen.number, Outcome(state="fail", reason=reason))
        return False

    def _reopen(self, frozen: FrozenTrial) -> optuna.trial.Trial:
        logging.info("Resuming the interrupted trial %d.", frozen.number)
        study = self._study
        if frozen.params.keys() >= self._space.distributions.keys():
            # All values have already been drawn, so open the study without its sampler.
            study = storage.open_study(
                self._job.config, self._job.study_dir, pruner=self._study.pruner
            )
        trial = optuna.trial.Trial(study, frozen._trial_id)
        _note_start(trial)
        self._space.suggest(trial)
        return trial


def _note_start(trial: optuna.trial.Trial) -> None:
    trial.set_user_attr(_HOST, socket.gethostname())
    _count(trial, _STARTS)


def _count(trial: optuna.trial.Trial, name: str) -> None:
    trial.set_user_attr(name, trial.user_attrs.get(name, 0) + 1)


def _run(job: StudyJob, trial: optuna.trial.Trial, space: Space) -> Outcome:
    model_dir = results.trial_dir(job.study_dir, trial.number)
    ended = Outcome.read(model_dir)
    if ended is not None:
        return ended
    params = space.suggest(trial)
    logging.info("Trial %d: %s", trial.number, params)
    if job.config.isolation == "process":
        return _run_in_process(job, trial.number, model_dir)
    return run_trial(job.evaluator, TrialRun(trial, params, job.config, model_dir))


def _run_in_process(job: StudyJob, number: int, model_dir: str) -> Outcome:
    output_path = os.path.join(model_dir, "output.txt")
    process = start_process(run_one, job, number, output_path=output_path)
    with ended_with_us([process]):
        process.join()
    ended = Outcome.read(model_dir)
    if ended is not None:
        return ended
    # A trial that fails writes `trial.json`, unless it was stopped or the disk is full. This trial
    # wrote no `trial.json`, so the exit code of a `CheckpointError` means that the disk is full.
    raise_if_stopped(process, f"Trial {number}", output_path)
    reason = f"its process ended {describe_end(process)}; see {output_path}"
    return Outcome(state="fail", reason=reason)


def raise_if_stopped(process: SpawnProcess, name: str, output: str) -> None:
    """Raise if a stop request or a full disk ended a process, so that it can be resumed.

    Args:
        process: A process that has ended.
        name: A description of the process, for the error message.
        output: The file or directory with the output of the process.
    """
    stops: dict[int | None, type[errors.PreemptedError]] = {
        errors.ExitCode.PREEMPTED: errors.PreemptedError,
        errors.ExitCode.INTERRUPTED: errors.StoppedByUserError,
    }
    again = "Start the same command again to resume."
    if process.exitcode in stops:
        raise stops[process.exitcode](f"{name} was asked to stop. {again}")
    if process.exitcode == errors.ExitCode.CHECKPOINT:
        raise errors.DiskFullError(
            f"{name} stopped because the disk is full; see {output}. Existing files are unchanged. "
            f"Free some space. {again}"
        )


def run_one(job: StudyJob, number: int) -> None:
    """Run one trial that another process has claimed."""
    pruner = samplers.create_pruner(job.config)
    study = storage.open_study(job.config, job.study_dir, pruner=pruner)
    frozen = study.get_trials(deepcopy=False)[number]
    trial = optuna.trial.Trial(study, frozen._trial_id)
    params = Space(job.config.space).suggest(trial)
    model_dir = results.trial_dir(job.study_dir, number)
    with raise_on_sigterm():
        run_trial(job.evaluator, TrialRun(trial, params, job.config, model_dir))


def _tell(study: optuna.Study, number: int, outcome: Outcome) -> None:
    values = list(outcome.values) if outcome.state == "complete" else None
    study.tell(number, values, state=_STATES[outcome.state])
    trial = study.get_trials(deepcopy=False)[number]
    shown = ", ".join(f"{value:g}" for value in trial.values or ())
    logging.info("Trial %d: %s %s %s", number, outcome.state, shown, outcome.reason)


# Use `spawn`, because a fork of a process that has imported TensorFlow hangs.
_CONTEXT = multiprocessing.get_context("spawn")


def start_process(function: Callable[..., object], *args: Any, output_path: str) -> SpawnProcess:
    """Start a function in its own process, which ends when this process ends.

    Args:
        function: A module-level function.
        *args: The arguments of the function. They must be picklable.
        output_path: The file that receives stdout and stderr of the process.

    Returns:
        The process.

    Raises:
        errors.ConfigTypeError: If an argument can't be sent to another process.
    """
    plugin_files = [
        str(module.__file__)
        for name, module in [*sys.modules.items()]
        if name.startswith(plugins.FILE_MODULES)
    ]
    files.makedirs(os.path.dirname(output_path))
    # Send the function and its arguments through a pipe, because the arguments of `Process` are
    # unpickled before the new process has loaded the plugin modules that they may refer to.
    receiver, sender = _CONTEXT.Pipe(duplex=False)
    setting = (plugin_files, gin_config.bindings(), output_path, plugins.restriction())
    process = _CONTEXT.Process(target=_run_in_child, args=(receiver, *setting))
    process.start()
    receiver.close()
    with sender:
        try:
            sender.send((function, args))
        except BrokenPipeError:
            # The process has already ended. The caller sees its exit code when waiting for it.
            pass
        except Exception as error:  # Pickling an arbitrary object may raise any exception.
            process.terminate()
            process.join()
            raise errors.ConfigTypeError(
                f"A trial can't be sent to a separate process: {error}. Move its functions to a "
                "module, or use `isolation: none` and `num_workers: 1`."
            ) from error
    return process


@contextlib.contextmanager
def ended_with_us(processes: Sequence[SpawnProcess]) -> Iterator[None]:
    """Terminate and join the processes if the body of the `with` statement raises.

    The processes receive SIGTERM, so each can save its state before it ends.

    Args:
        processes: The processes. The list may change while the context is active.
    """
    try:
        yield
    except BaseException:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()
        raise


def wait_for_any(processes: Sequence[SpawnProcess]) -> SpawnProcess:
    """Wait until one of the processes has ended, and return that process."""
    by_sentinel: dict[Any, SpawnProcess] = {process.sentinel: process for process in processes}
    ended = by_sentinel[connection.wait([*by_sentinel])[0]]
    ended.join()
    return ended


def describe_end(process: SpawnProcess) -> str:
    """Return in words how a process has ended: its signal or its exit code."""
    code = process.exitcode or 0
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with the exit code {code}"


@contextlib.contextmanager
def raise_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into a `PreemptedError` inside the `with` statement.

    The exception lets the caller end the processes it has started in an orderly way, and count a
    trial as stopped. It is not raised in forked children, such as those of a pool in an evaluator,
    nor for a signal that soon follows another one. Outside of the main thread this does nothing.
    """
    owner = os.getpid()
    latest = -math.inf

    def on_signal(number: int, _: FrameType | None) -> None:
        if os.getpid() != owner:
            signal.signal(number, old)
            signal.raise_signal(number)
            return
        nonlocal latest
        previous, latest = latest, time.monotonic()
        # A scheduler may signal a process directly and through its parent.
        if latest - previous < preemption.SECONDS_OF_ONE_REQUEST:
            return
        raise errors.PreemptedError(
            f"{signal.Signals(number).name} stopped this study. Start the same command again to "
            "resume it."
        )

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)


def _run_in_child(
    receiver: connection.Connection,
    plugin_files: Sequence[str],
    gin_bindings: str,
    output_path: str,
    restriction: plugins.Restriction | None,
) -> None:
    output = os.open(output_path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for number in (1, 2):
        os.dup2(output, number)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    logging.set_verbosity(logging.INFO)
    try:
        for path in plugin_files:
            plugins.load_module(path)
        plugins.restrict(restriction)
        function, args = receiver.recv()
        gin_config.parse_gin([], [gin_bindings])
        with error_report.naming_the_resource():
            function(*args)
    except errors.OfficialLiteError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        sys.exit(int(error.exit_code))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
