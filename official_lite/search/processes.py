"""The processes of a study: workers, and trials that run in their own process."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from types import FrameType
from typing import Any

from absl import logging

from official_lite.common import error_report, errors, files, plugins
from official_lite.config import gin_config

__all__ = ["describe_end", "ended_with_us", "raise_on_sigterm", "start", "wait_for_any"]

# Spawn, because a fork of a process that has imported TensorFlow hangs.
_CONTEXT = multiprocessing.get_context("spawn")


def start(function: Callable[..., object], *args: Any, output_path: str) -> SpawnProcess:
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
        if name.startswith(plugins._FILE_MODULES)
    ]
    files.makedirs(os.path.dirname(output_path))
    # Send the function and its arguments through a pipe. The arguments of `Process` are unpickled
    # before the new process has loaded the plugin modules that they may refer to.
    receiver, sender = _CONTEXT.Pipe(duplex=False)
    setting = (plugin_files, gin_config.bindings(), output_path, plugins.restriction())
    process = _CONTEXT.Process(target=_run, args=(receiver, *setting))
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

    The exception lets the caller end the processes it has started in an orderly way. Outside of the
    main thread this does nothing.
    """

    def on_signal(number: int, _: FrameType | None) -> None:
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


def _run(
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
