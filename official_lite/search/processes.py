"""Processes of a study: workers, and trials on their own."""

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

from official_lite.common import errors, files, origins, plugins
from official_lite.core import gin_config

__all__ = ["describe_end", "ended_with_us", "raise_on_sigterm", "start", "wait_for_any"]

# A fork of a process with TensorFlow in it hangs.
_CONTEXT = multiprocessing.get_context("spawn")


def start(function: Callable[..., object], *args: Any, output_path: str) -> SpawnProcess:
    """Starts a function in a process of its own, which ends if this one does.

    Args:
        function: A function of a module.
        *args: Its arguments, which have to be picklable.
        output_path: The file to which its output goes.

    Raises:
        errors.ConfigTypeError: An argument can't be sent to another process.
    """
    plugin_files = [
        str(module.__file__)
        for name, module in [*sys.modules.items()]
        if name.startswith(origins.FILE_MODULES)
    ]
    files.makedirs(os.path.dirname(output_path))
    # Not among the arguments of the process, which are made anew before the plugins are there.
    receiver, sender = _CONTEXT.Pipe(duplex=False)
    setting = (plugin_files, gin_config.bindings(), output_path, plugins.restriction())
    process = _CONTEXT.Process(target=_run, args=(receiver, *setting))
    process.start()
    receiver.close()
    with sender:
        try:
            sender.send((function, args))
        except BrokenPipeError:
            # It has ended already; whoever waits for it hears how.
            pass
        except Exception as error:  # An object may raise what it likes when it is taken apart.
            process.terminate()
            process.join()
            raise errors.ConfigTypeError(
                f"A trial can't be sent to a process of its own: {error}. Put what it calls into a "
                "module, or run it with `isolation: none` and `num_workers: 1`."
            ) from error
    return process


@contextlib.contextmanager
def ended_with_us(processes: Sequence[SpawnProcess]) -> Iterator[None]:
    """An error inside ends the processes first, each with what it has to save.

    Args:
        processes: A list that may change meanwhile.
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
    """Until one of them has ended."""
    by_sentinel: dict[Any, SpawnProcess] = {process.sentinel: process for process in processes}
    ended = by_sentinel[connection.wait([*by_sentinel])[0]]
    ended.join()
    return ended


def describe_end(process: SpawnProcess) -> str:
    """How a process has ended, in words."""
    code = process.exitcode or 0
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with the exit code {code}"


@contextlib.contextmanager
def raise_on_sigterm() -> Iterator[None]:
    """Inside, SIGTERM is an exception, so that what this process has started is ended in order."""

    def on_signal(number: int, _: FrameType | None) -> None:
        raise errors.PreemptedError(
            f"{signal.Signals(number).name} has ended this study. The same command goes on with it."
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
    receiver: Any,
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
        function(*args)
    except errors.OfficialLiteError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        sys.exit(int(error.exit_code))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
