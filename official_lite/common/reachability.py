"""Whether the processes of a cluster listen at their addresses: at the start, and after an error.

TensorFlow waits long, or for ever, for one that does not come, and does not say which one has gone.
No TensorFlow is needed.
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

from official_lite.common import cluster, errors

__all__ = [
    "TIMEOUT_VARIABLE",
    "name_the_lost",
    "patience",
    "reason",
    "unreachable",
    "wait_for_servers",
]

TIMEOUT_VARIABLE = "OFFICIAL_LITE_CLUSTER_TIMEOUT"
_DEFAULT_SECONDS = 60.0

_SECONDS_TO_CONNECT = 3.0
_SECONDS_TO_BE_GONE = 2.0
_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_BETWEEN_REMINDERS = 15.0
_MOST_THREADS = 32

# What TensorFlow calls a process.
_TASK = re.compile(r"/job:(\w+)(?:/replica:\d+)?/task:(\d+)")


def patience() -> float:
    """Seconds to wait for other processes: a minute, or `OFFICIAL_LITE_CLUSTER_TIMEOUT`.

    It is no field of a config, since it is a matter of who starts the processes: a scheduler may
    take minutes from the first to the last.

    Raises:
        errors.ConfigValueError: The variable is no positive number.
    """
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    if not text:
        return _DEFAULT_SECONDS
    with contextlib.suppress(ValueError):
        # Not a number that is "nan".
        if 0 < (seconds := float(text)) < float("inf"):
            return seconds
    raise errors.ConfigValueError(
        f"The environment variable {TIMEOUT_VARIABLE} is {text!r}; wanted a number of seconds."
    )


def unreachable(addresses: Mapping[str, str]) -> dict[str, str]:
    """Where nothing listens, and why.

    Args:
        addresses: `host:port` by the name of the process.

    Returns:
        The reasons, by the names of those that can't be reached.
    """
    if not addresses:
        return {}
    with futures.ThreadPoolExecutor(min(_MOST_THREADS, len(addresses))) as pool:
        reasons = zip(addresses, pool.map(_try, addresses.values()), strict=True)
        return {name: why for name, why in reasons if why is not None}


def wait_for_servers(found: cluster.ClusterConfig, seconds: float | None = None) -> None:
    """Returns when all workers and parameter servers of a chief listen.

    Args:
        found: The cluster.
        seconds: How long to wait for them; see `patience` for the default.

    Raises:
        errors.ClusterError: One does not; all that don't are named.
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
                f"{waits} did not answer within {seconds:g} s. This is {found.name}. Are all of "
                f"them started, and reachable from here? {TIMEOUT_VARIABLE} is the time to wait."
            )
        if now > next_reminder:
            next_reminder = now + _SECONDS_BETWEEN_REMINDERS
            logging.info("Waiting for %s.", waits)
        time.sleep(_SECONDS_BETWEEN_LOOKS)


@contextlib.contextmanager
def name_the_lost() -> Iterator[None]:
    """Within it, an error of TensorFlow's says who has gone, if a process of the cluster has.

    Raises:
        errors.ClusterError: One has.
    """
    try:
        yield
    except Exception as error:
        found = cluster.read_tf_config()
        if found is None or not _is_of_tensorflow(error):
            raise
        # Workers of parameter servers may come and go.
        addresses = found.members(*(("ps",) if "ps" in found.jobs else ("chief", "worker")))
        addresses.pop(found.name, None)
        gone = _who_has_gone(addresses) or _who_was_lost(error, addresses)
        if not gone:
            raise
        lost = ", ".join(f"{name} at {addresses[name]}" for name in gone)
        raise errors.ClusterError(
            f"Gone: {lost}. Without that, {found.name} can't go on. Start the same command again "
            "in all processes: it goes on from the last checkpoint."
        ) from error


def reason(error: Exception) -> str:
    """Why an address can't be reached, in a few words."""
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, socket.gaierror):
        return "its host can't be found"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(error, ValueError):
        return "something else answers there; is a training under way?"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _try(address: str) -> str | None:
    try:
        socket.create_connection(cluster.split_address(address), _SECONDS_TO_CONNECT).close()
    except OSError as error:
        return reason(error)
    return None


def _who_has_gone(addresses: Mapping[str, str]) -> Iterable[str]:
    """Looks for a while: a killed process loses its connections before it stops to listen."""
    deadline = time.monotonic() + _SECONDS_TO_BE_GONE
    while not (gone := unreachable(addresses)) and time.monotonic() < deadline:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    return gone


def _who_was_lost(error: Exception, addresses: Mapping[str, str]) -> Iterable[str]:
    """Whom TensorFlow names, though somebody listens: one that is frozen, or was started anew."""
    if not _is_of_tensorflow(error, "UnavailableError", "AbortedError"):
        return ()
    tasks = _TASK.findall(f"{error} {error.__cause__}")
    named = {cluster.task_name(job, int(index)) for job, index in tasks}
    return sorted(named & addresses.keys())


def _is_of_tensorflow(error: BaseException | None, *kinds: str) -> bool:
    """Whether an operation has failed in one of these ways, or in any, or has led to the error."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None or error is None:
        return False
    classes = tuple(getattr(tensorflow.errors, kind) for kind in kinds or ["OpError"])
    return isinstance(error, classes) or _is_of_tensorflow(error.__cause__, *kinds)
