"""Checks of whether the processes of a cluster listen at their addresses.

The checks run at the start and after an error. TensorFlow waits for a long time, or forever, for a
missing process, and does not report which process was lost. This module does not need TensorFlow.
"""

import contextlib
import os
import re
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent import futures

from absl import logging

from official_lite.common import errors
from official_lite.common.cluster import tf_config

__all__ = [
    "TIMEOUT_VARIABLE",
    "TOKEN_VARIABLE",
    "report_lost_peers",
    "patience",
    "reason",
    "unreachable",
    "wait_for_servers",
]


TIMEOUT_VARIABLE = "OFFICIAL_LITE_CLUSTER_TIMEOUT"

TOKEN_VARIABLE = "OFFICIAL_LITE_CLUSTER_TOKEN"

_DEFAULT_SECONDS = 60.0

_SECONDS_TO_CONNECT = 3.0

_SECONDS_TO_BE_GONE = 2.0

_SECONDS_BETWEEN_LOOKS = 0.2

_SECONDS_BETWEEN_REMINDERS = 15.0

_MOST_THREADS = 32

# Matches the names that TensorFlow gives to processes.
_TASK = re.compile(r"/job:(\w+)(?:/replica:\d+)?/task:(\d+)")


def patience() -> float:
    """Return how long to wait for other processes, in seconds.

    The default is 60 seconds; the environment variable `OFFICIAL_LITE_CLUSTER_TIMEOUT` overrides
    it. This is not a field of the config because it depends on how the processes are started: a
    scheduler may take minutes from the first process to the last.

    Raises:
        errors.ConfigValueError: If the variable is not a positive number.
    """
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    if not text:
        return _DEFAULT_SECONDS
    with contextlib.suppress(ValueError):
        # The comparison also rejects `nan`.
        if 0 < (seconds := float(text)) < float("inf"):
            return seconds
    raise errors.ConfigValueError(
        f"The environment variable {TIMEOUT_VARIABLE} is {text!r}; expected a number of seconds."
    )


def unreachable(addresses: Mapping[str, str]) -> dict[str, str]:
    """Return the processes that cannot be reached, and why.

    Args:
        addresses: A mapping of process names to `host:port`.

    Returns:
        A mapping of the names of unreachable processes to the reasons.
    """
    if not addresses:
        return {}
    with futures.ThreadPoolExecutor(min(_MOST_THREADS, len(addresses))) as pool:
        reasons = zip(addresses, pool.map(_try, addresses.values()), strict=True)
        return {name: why for name, why in reasons if why is not None}


def wait_for_servers(found: tf_config.ClusterConfig, seconds: float | None = None) -> None:
    """Wait until all workers and parameter servers of a chief listen.

    Args:
        found: The cluster.
        seconds: The longest time to wait, in seconds. Defaults to `patience()`.

    Raises:
        errors.ClusterError: If a process does not listen. The message names all such processes.
    """
    seconds = patience() if seconds is None else seconds
    addresses = found.members("worker", "ps")
    started = time.monotonic()
    next_reminder = started + _SECONDS_BETWEEN_REMINDERS
    while reasons := unreachable(addresses):
        waits = "; ".join(f"{name} at {addresses[name]} ({why})" for name, why in reasons.items())
        now = time.monotonic()
        if now - started > seconds:
            raise errors.ClusterError(
                f"{waits} did not answer {found.name} within {seconds:g} s. Check that all "
                f"processes are started and reachable from this host. {TIMEOUT_VARIABLE} sets the "
                "time limit."
            )
        if now > next_reminder:
            next_reminder = now + _SECONDS_BETWEEN_REMINDERS
            logging.info("Waiting for %s.", waits)
        time.sleep(_SECONDS_BETWEEN_LOOKS)


@contextlib.contextmanager
def report_lost_peers() -> Iterator[None]:
    """Turn TensorFlow errors in this context into errors that name the lost processes.

    Errors are passed through unchanged if no process of the cluster was lost.

    Raises:
        errors.ClusterError: If a process was lost.
    """
    try:
        yield
    except Exception as error:
        found = tf_config.read_tf_config()
        if found is None or not _is_of_tensorflow(error):
            raise
        # Workers of parameter servers may leave and return, so only the servers count.
        addresses = found.members(*(("ps",) if "ps" in found.jobs else ("chief", "worker")))
        addresses.pop(found.name, None)
        gone = _who_has_gone(addresses) or _who_was_lost(error, addresses)
        if not gone:
            raise
        lost = ", ".join(f"{name} at {addresses[name]}" for name in gone)
        raise errors.ClusterError(
            f"Lost connection to {lost}; {found.name} can't continue without it. Start the same "
            "command again in all processes to resume from the last checkpoint."
        ) from error


def reason(error: Exception) -> str:
    """Return a short reason why an address cannot be reached."""
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, socket.gaierror):
        return "unknown host"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens at this port"
    if isinstance(error, ValueError):
        return f"another run or program uses this port, or {TOKEN_VARIABLE} differs"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _try(address: str) -> str | None:
    try:
        socket.create_connection(tf_config.split_address(address), _SECONDS_TO_CONNECT).close()
    except OSError as error:
        return reason(error)
    return None


def _who_has_gone(addresses: Mapping[str, str]) -> Iterable[str]:
    """Return the processes that do not listen, polling for up to two seconds.

    A killed process loses its connections before it stops listening.
    """
    deadline = time.monotonic() + _SECONDS_TO_BE_GONE
    while not (gone := unreachable(addresses)) and time.monotonic() < deadline:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    return gone


def _who_was_lost(error: Exception, addresses: Mapping[str, str]) -> Iterable[str]:
    """Return the processes that TensorFlow names although their addresses are reachable.

    Such a process is frozen or was restarted.
    """
    if not _is_of_tensorflow(error, "UnavailableError", "AbortedError"):
        return ()
    tasks = _TASK.findall(f"{error} {error.__cause__}")
    named = {tf_config.task_name(job, int(index)) for job, index in tasks}
    return sorted(named & addresses.keys())


def _is_of_tensorflow(error: BaseException | None, *kinds: str) -> bool:
    """Return whether the error, or one that caused it, is a TensorFlow error of the given kinds."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None or error is None:
        return False
    classes = tuple(getattr(tensorflow.errors, kind) for kind in kinds or ["OpError"])
    return isinstance(error, classes) or _is_of_tensorflow(error.__cause__, *kinds)
