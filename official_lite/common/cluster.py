"""The processes of a cluster: their rendezvous, reachability checks, and servers for a chief.

TensorFlow waits for a long time, or forever, for a missing process, and does not report which
process is missing or was lost. `wait_for_servers`, `report_lost_peers` and, for the workers of a
multi-worker strategy, `meet` report it.

Workers run their own rendezvous before TensorFlow starts. Each worker listens at its own address,
where TensorFlow will listen later, and polls all other workers until each of them reports that it
has heard from everyone::

    worker 0                                  worker 1
      who are you? I am worker 0        ->
                                        <-    worker 1; I still miss: worker 2
      who are you? I am worker 0        ->
                                        <-    worker 1; I miss no one

A worker leaves once no worker is missing anyone and it has reported this to all others. At that
point, no other worker still has to poll its listener. This module does not need TensorFlow.

If the rendezvous reveals an invalid cluster, the run ends at once on all workers that are present.
Examples are different descriptions of the cluster, an address that is in use, and two processes
with the same index.

If the environment variable `OFFICIAL_LITE_CLUSTER_TOKEN` is set, each message is signed with this
token. Connections without a valid signature are ignored and counted. `launch` sets the variable.
"""

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import json
import os
import re
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent import futures
from typing import Any

from absl import logging

from official_lite.common import errors, files, tf_config

TIMEOUT_VARIABLE = "OFFICIAL_LITE_CLUSTER_TIMEOUT"

TOKEN_VARIABLE = "OFFICIAL_LITE_CLUSTER_TOKEN"

_DEFAULT_SECONDS = 60.0

_SECONDS_TO_CONNECT = 3.0

_SECONDS_TO_BE_GONE = 2.0

_SECONDS_BETWEEN_LOOKS = 0.2

_SECONDS_BETWEEN_REMINDERS = 15.0

_MAX_THREADS = 32

# Matches the names that TensorFlow gives to processes.
_TASK = re.compile(r"/job:(\w+)(?:/replica:\d+)?/task:(\d+)")

# TensorFlow's name for the service that the leader runs for all processes.
_SERVICE = "/tensorflow.CoordinationService/"

# TensorFlow's name for the barrier at which all processes meet when they start the coordination
# service.
_START = "Wait_for_all_tasks_to_register"


def patience() -> float:
    """Return how long to wait for other processes, in seconds.

    The default is 60 seconds; the environment variable `OFFICIAL_LITE_CLUSTER_TIMEOUT` overrides
    it. This is not a field of the config because it depends on how the processes are started: a
    scheduler may take minutes to start all processes.

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
        f"The environment variable {TIMEOUT_VARIABLE} is {text!r}; expected a positive number of "
        "seconds."
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
    with futures.ThreadPoolExecutor(min(_MAX_THREADS, len(addresses))) as pool:
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

    Errors are passed through unchanged if no process that this one needs was lost.

    Raises:
        errors.ClusterError: If a process was lost.
    """
    try:
        yield
    except Exception as error:
        found = tf_config.read_tf_config()
        if found is None or not _is_of_tensorflow(error):
            raise
        addresses = _needed_processes(found)
        if not addresses:
            raise
        leader = next(iter(addresses))
        addresses.pop(found.name, None)
        gone = _who_has_gone(addresses) or _who_was_lost(error, addresses, found.name, leader)
        if not gone:
            raise
        lost = ", ".join(f"{name} at {addresses[name]}" for name in gone)
        advice = (
            " If it is not lost but still in the stage `prepare`, set the environment variable "
            f"{TIMEOUT_VARIABLE} to the number of seconds that this stage may take."
            if _START in str(error)
            else ""
        )
        raise errors.ClusterError(
            f"Lost connection to {lost}; {found.name} can't continue without it. Start the same "
            f"command again in all processes to resume from the last checkpoint.{advice}"
        ) from error


def _needed_processes(found: tf_config.ClusterConfig) -> dict[str, str]:
    """Return the addresses of the processes, including this one, without which training fails."""
    if not found.is_one_of_several_trainers:
        return {}
    # With parameter servers, workers may leave and return.
    return found.members("ps") if "ps" in found.jobs else found.members("chief", "worker")


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
    """Poll for up to two seconds and return the names of the processes that no longer listen.

    A single check is not enough, because a killed process loses its connections before it stops
    listening.
    """
    deadline = time.monotonic() + _SECONDS_TO_BE_GONE
    while not (gone := unreachable(addresses)) and time.monotonic() < deadline:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    return gone


def _who_was_lost(
    error: Exception, addresses: Mapping[str, str], own_name: str, leader: str
) -> Iterable[str]:
    """Return the processes that a TensorFlow error names although their addresses are reachable.

    Such a process is frozen or was restarted. If the leader, to which all others send heartbeats,
    is frozen, the heartbeats time out, and the error may name only the leader's service.
    """
    text = f"{error} {error.__cause__}"
    # A `DeadlineExceededError` counts only if it names the coordination service, because it may
    # also come from a file system or from the tf.data service.
    is_late = _is_of_tensorflow(error, "DeadlineExceededError") and _SERVICE in text
    if not is_late and not _is_of_tensorflow(error, "UnavailableError", "AbortedError"):
        return ()
    # The error of a barrier also names the first process that arrived, so read only the names of
    # the processes that did not arrive.
    _, is_barrier, text = text.rpartition("Some timed out task names:")
    tasks = {tf_config.task_name(job, int(index)) for job, index in _TASK.findall(text)}
    if is_late and not is_barrier and tasks <= {own_name}:
        tasks = {leader}
    return sorted(tasks & addresses.keys())


def _is_of_tensorflow(error: BaseException | None, *kinds: str) -> bool:
    """Return whether an error or one of its causes is a TensorFlow error of one of these kinds.

    Without `kinds`, any TensorFlow error counts.
    """
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None or error is None:
        return False
    classes = tuple(getattr(tensorflow.errors, kind) for kind in kinds or ["OpError"])
    return isinstance(error, classes) or _is_of_tensorflow(error.__cause__, *kinds)


_SECONDS_PER_CALL = 5.0

# With more than 50 workers, each worker waits longer between calls to limit the load.
_SECONDS_BETWEEN_CALLS = 0.2

_CALLS_PER_SECOND = 250

_CALLS_AT_A_TIME = 64

# The time during which a worker with a problem still answers, so that the other workers can report
# the problem.
_SECONDS_OF_FAREWELL = 1.0

_MAX_BYTES = 2**22

# The maximum number of open connections; larger clusters may open one for each worker. Above the
# limit, each new connection closes the oldest one, so that idle connections can't use up all file
# descriptors. Workers are not affected, because they send their message immediately.
_MAX_CONNECTIONS = 64

# The keys that every message must contain.
_QUESTION = {"name", "id", "process", "cluster", "jobs", "proof"}

# The additional keys that an answer must contain.
_ANSWER = {"missing", "problem", "is_config"}

# TensorFlow cannot leave and rejoin a cluster, so one rendezvous per process is enough.
_met: tf_config.ClusterConfig | None = None


def meet(found: tf_config.ClusterConfig, seconds: float | None = None) -> None:
    """Wait until all workers are present; return at once if they have met before.

    Args:
        found: The cluster and the task of this process.
        seconds: The longest time to wait, in seconds. Defaults to `patience()`.

    Raises:
        errors.ClusterError: If a worker did not answer in time.
        errors.ConfigValueError: If the description of the cluster is invalid.
    """
    global _met
    if found == _met or not found.is_one_of_several_trainers:
        return
    asyncio.run(_RollCall(found, patience() if seconds is None else seconds).run())
    _met = found


class _RollCall:
    """One worker's side of the rendezvous."""

    def __init__(self, found: tf_config.ClusterConfig, seconds: float) -> None:
        self._name = found.name
        self._addresses = found.members("chief", "worker")
        self._jobs = {job: list(addresses) for job, addresses in found.jobs.items()}
        text = json.dumps(self._jobs, sort_keys=True)
        self._digest = hashlib.sha256(text.encode()).hexdigest()
        self._seconds = seconds
        self._id = uuid.uuid4().hex
        self._process = f"process {os.getpid()} on {socket.gethostname()}"
        self._token = os.environ.get(TOKEN_VARIABLE, "").encode()
        self._connections: dict[asyncio.StreamWriter, None] = {}  # Connections, oldest first.
        self._num_strangers = 0
        others = self._addresses.keys() - {self._name}
        # `_missing` maps each worker that has not answered to the reason. For each worker that may
        # still be waiting, `_unready` holds the names of the workers that it last reported as
        # missing. `_untold` contains the workers to which this worker has not yet reported that it
        # is missing no one.
        self._missing = dict.fromkeys(sorted(others), "not contacted yet")
        self._unready: dict[str, list[str]] = {name: [] for name in others}
        self._untold = set(others)

    async def run(self) -> None:
        self._outcome = asyncio.get_running_loop().create_future()
        self._calls = asyncio.Semaphore(_CALLS_AT_A_TIME)
        self._problem: errors.OfficialLiteError | None = None
        with contextlib.closing(await self._listen()):
            tasks = [asyncio.create_task(self._ask(name)) for name in self._addresses]
            tasks.append(asyncio.create_task(self._remind()))
            try:
                await asyncio.wait_for(self._outcome, self._seconds)
            except TimeoutError:
                self._fail(errors.ClusterError(self._who_is_missing()))
            except errors.OfficialLiteError:
                pass
            for task in tasks:
                task.cancel()
            if self._problem is not None:
                await asyncio.sleep(_SECONDS_OF_FAREWELL)
                raise self._problem

    async def _listen(self) -> asyncio.Server:
        address = self._addresses[self._name]
        host, port = tf_config.split_address(address)
        try:
            # A host name is only the name under which others find this process, so listen on all
            # interfaces, as TensorFlow does. With a loopback address, the cluster runs on one
            # machine, and no other machine should connect.
            return await asyncio.start_server(
                self._answer,
                host if _is_loopback(host) else None,
                port,
                limit=_MAX_BYTES,
                backlog=_MAX_CONNECTIONS,
            )
        except OSError as error:
            raise errors.ConfigValueError(
                f"{self._name} can't listen at its address {address}: "
                f"{reason(error)}. Give each process of the cluster its own index and "
                "address."
            ) from error

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            self._connections[writer] = None
            if len(self._connections) > max(_MAX_CONNECTIONS, len(self._addresses)):
                oldest = next(iter(self._connections))
                del self._connections[oldest]
                oldest.transport.abort()
            try:
                await self._converse(reader, writer)
            except ValueError:
                self._num_strangers += 1
            except (OSError, asyncio.CancelledError):
                # Connections that are still open at the end of the rendezvous are canceled, and
                # asyncio would log an error for each.
                pass
            finally:
                self._connections.pop(writer, None)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await asyncio.wait_for(reader.readline(), _SECONDS_PER_CALL)
        question = self._read(line, _QUESTION)
        is_same_cluster = question["cluster"] == self._digest
        answer = {
            **self._introduction(),
            "jobs": None if is_same_cluster else self._jobs,
            "missing": list(self._missing),
            "problem": str(self._problem) if self._problem else None,
            "is_config": isinstance(self._problem, errors.ConfigError),
        }
        writer.write(self._signed(answer))
        await writer.drain()
        # Wait until the other worker closes the connection, which shows that it has read the
        # answer.
        await asyncio.wait_for(reader.read(), _SECONDS_PER_CALL)
        self._hear(question, is_told=not answer["missing"])

    def _introduction(self) -> dict[str, Any]:
        """Return the entries that all of this worker's messages contain."""
        return {
            "name": self._name,
            "id": self._id,
            "process": self._process,
            "cluster": self._digest,
        }

    def _signed(self, message: Mapping[str, Any]) -> bytes:
        return json.dumps({**message, "proof": self._proof(message)}).encode() + b"\n"

    def _proof(self, message: Mapping[str, Any]) -> str:
        text = json.dumps(message, sort_keys=True)
        return hmac.new(self._token, text.encode(), hashlib.sha256).hexdigest()

    def _read(self, line: bytes, keys: set[str]) -> dict[str, Any]:
        """Parse and verify a message from another worker.

        Raises:
            ValueError: The message is not from a worker of this cluster.
        """
        message = files.parse_json(line)
        if not message.keys() >= keys:
            raise ValueError("the message lacks keys that every worker sends")
        proof = str(message.pop("proof")).encode()
        if not hmac.compare_digest(self._proof(message).encode(), proof):
            raise ValueError("the message is signed with a different token")
        return message

    def _hear(self, question: Mapping[str, Any], *, is_told: bool) -> None:
        """Update the state of the rendezvous when another worker polls this worker."""
        name = question["name"]
        if question["cluster"] != self._digest:
            self._fail(self._disagreement(question))
        elif name == self._name and question["id"] != self._id:
            self._fail(self._two_in_one_place(question))
        elif is_told:
            self._untold.discard(name)
            self._look_whether_done()

    async def _ask(self, name: str) -> None:
        """Poll a worker until it is no longer waiting for other workers.

        A worker polls its own address, too, because another process may answer there.
        """
        pause = max(_SECONDS_BETWEEN_CALLS, len(self._addresses) / _CALLS_PER_SECOND)
        while not self._outcome.done():
            try:
                async with self._calls:
                    answer = await asyncio.wait_for(self._call(name), _SECONDS_PER_CALL)
            except (OSError, ValueError, TimeoutError) as error:
                if name in self._missing:
                    self._missing[name] = reason(error)
            else:
                if self._is_all_said(name, answer):
                    return
            await asyncio.sleep(pause)

    async def _call(self, name: str) -> dict[str, Any]:
        host, port = tf_config.split_address(self._addresses[name])
        reader, writer = await asyncio.open_connection(host, port, limit=_MAX_BYTES)
        with contextlib.closing(writer):
            question = {**self._introduction(), "jobs": self._jobs}
            writer.write(self._signed(question))
            await writer.drain()
            return self._read(await reader.readline(), _QUESTION | _ANSWER)

    def _is_all_said(self, name: str, answer: Mapping[str, Any]) -> bool:
        if answer["problem"]:
            kind = errors.ConfigValueError if answer["is_config"] else errors.ClusterError
            self._fail(kind(f"{answer['name']} stopped waiting: {answer['problem']}"))
        elif answer["cluster"] != self._digest or answer["name"] != name:
            self._fail(self._disagreement(answer))
        elif name == self._name:
            if answer["id"] != self._id:
                self._fail(self._two_in_one_place(answer))
            return True
        self._missing.pop(name, None)
        self._unready[name] = answer["missing"]
        if not answer["missing"]:
            del self._unready[name]
            self._look_whether_done()
            return True
        return False

    def _look_whether_done(self) -> None:
        if not (self._missing or self._unready or self._untold or self._outcome.done()):
            self._outcome.set_result(None)

    async def _remind(self) -> None:
        while True:
            await asyncio.sleep(_SECONDS_BETWEEN_REMINDERS)
            logging.info(
                "Waiting for %s.", "; ".join(self._waits()) or "the other processes to be ready"
            )

    def _fail(self, problem: errors.OfficialLiteError) -> None:
        """Record a problem, unless there is one already, and end the rendezvous."""
        self._problem = self._problem or problem
        if not self._outcome.done():
            self._outcome.set_exception(self._problem)

    def _who_is_missing(self) -> str:
        strangers = (
            f" Ignored {self._num_strangers} connections that do not belong to this cluster."
            if self._num_strangers
            else ""
        )
        whom = f" {self._name}" if self._missing else ""
        return (
            f"{'; '.join(self._waits()) or 'A worker that was ready before'} did not answer{whom} "
            f"within {self._seconds:g} s. Check that all processes are started and "
            f"reachable from this host. {TIMEOUT_VARIABLE} sets the time limit."
            f"{strangers}"
        )

    def _waits(self) -> list[str]:
        own = [f"{name} at {self._addresses[name]} ({why})" for name, why in self._missing.items()]
        # If all others have answered this worker, name the workers that others are missing. One of
        # them may be this worker: others can't reach it if its address in the cluster is not an
        # address of this host.
        missed_by: dict[str, list[str]] = {}
        for name, missing in sorted(self._unready.items()):
            for one in missing:
                missed_by.setdefault(one, []).append(name)
        theirs = [
            f"{one} at {self._addresses.get(one)} (missed by {', '.join(names)})"
            for one, names in sorted(missed_by.items())
        ]
        return own or theirs

    def _disagreement(self, other: Mapping[str, Any]) -> errors.ConfigValueError:
        return errors.ConfigValueError(
            f"The TF_CONFIG of {self._name} and of {other['name']} ({other['process']}) describe "
            f"different clusters. Here: {json.dumps(self._jobs)}; there: "
            f"{json.dumps(other['jobs'])}. Set the same `cluster` in all processes."
        )

    def _two_in_one_place(self, other: Mapping[str, Any]) -> errors.ConfigValueError:
        return errors.ConfigValueError(
            f"Two processes use the name {self._name}: {self._process} (this one) and "
            f"{other['process']}. Give each process its own index in TF_CONFIG, and start "
            f"{self._name} on the host with the address {self._addresses[self._name]}."
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


_SERVER_JOBS = ("ps", "worker")

_SECONDS_BETWEEN_LOOKS_AT_CHIEF = 2.0

_SECONDS_FOR_A_CHIEF_TO_COME = 600.0

_SECONDS_FOR_A_CHIEF_TO_COME_BACK = 60.0


def is_server(distribution_strategy: str) -> bool:
    """Return whether this process must call `serve` instead of training under this strategy."""
    if distribution_strategy.lower() != "parameter_server":
        return False
    found = tf_config.read_tf_config()
    return found is not None and found.task_type in _SERVER_JOBS


def serve() -> None:
    """Run the server for this process's task in `TF_CONFIG` until SIGTERM or the chief's end.

    A parameter server stores variables and a worker computes steps, both on behalf of the chief.
    Neither has a task or trainer of its own, so both run the same code. TensorFlow's servers never
    exit by themselves. This server exits with code 0 in two cases:

    * It receives SIGTERM. It then exits immediately, because it has nothing to save.
    * The chief was present and has been gone for a minute. A chief that restarts within this minute
      finds its servers unchanged.

    If no chief appears in the first ten minutes, the server exits with an error.

    Raises:
        errors.ConfigValueError: If the process has no such task, or cannot listen at its address.
        errors.ClusterError: If no chief appeared.
    """
    found = tf_config.read_tf_config()
    if found is None or found.task_type not in _SERVER_JOBS:
        raise errors.ConfigValueError(
            f"Only processes of the jobs {_SERVER_JOBS} in TF_CONFIG can serve; this one is "
            f"{found.name if found else 'in no cluster'}. Set its `task` in TF_CONFIG."
        )
    fail_fast()
    server = _start(found)
    logging.info("%s serves at %s.", found.name, found.members(found.task_type)[found.name])
    _wait_for_the_end(found)
    del server


def fail_fast() -> None:
    """Make calls to a lost process fail instead of waiting for it.

    Call this before TensorFlow connects to other processes.
    """
    os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")


def _start(found: tf_config.ClusterConfig) -> Any:
    # Import TensorFlow here, because only servers need it.
    import tensorflow as tf

    # Provide a thread for each of the other processes, because each of them may have a call to this
    # server in progress that waits for another process.
    threads = max(os.cpu_count() or 1, found.num_workers + 1)
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads)
    if found.task_type == "ps":
        # Parameter servers keep variables in host memory.
        config.device_count["GPU"] = 0
    jobs = {job: list(found.jobs[job]) for job in ("chief", *_SERVER_JOBS) if job in found.jobs}
    try:
        return tf.distribute.Server(
            tf.train.ClusterSpec(jobs),
            job_name=found.task_type,
            task_index=found.task_index,
            protocol="grpc",
            config=config,
        )
    except tf.errors.OpError as error:
        address = found.members(found.task_type)[found.name]
        raise errors.ConfigValueError(
            f"{found.name} can't listen at its address {address} ({error.message}). Give each "
            "process of the cluster its own index and address."
        ) from error


def _wait_for_the_end(found: tf_config.ClusterConfig) -> None:
    stop = threading.Event()
    old_handler = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        chief = found.members("chief")
        last_seen: float | None = None
        started = time.monotonic()
        while not stop.wait(_SECONDS_BETWEEN_LOOKS_AT_CHIEF):
            now = time.monotonic()
            if not unreachable(chief):
                last_seen = now
            elif last_seen is None and now - started > _SECONDS_FOR_A_CHIEF_TO_COME:
                raise errors.ClusterError(
                    f"{found.name} waited {_SECONDS_FOR_A_CHIEF_TO_COME:g} s, but no chief "
                    f"started at {chief['chief']}. Start the chief within this time."
                )
            elif last_seen is not None and now - last_seen > _SECONDS_FOR_A_CHIEF_TO_COME_BACK:
                logging.info("The chief is gone. Stopping %s.", found.name)
                return
        logging.info("SIGTERM: stopping %s.", found.name)
    finally:
        signal.signal(signal.SIGTERM, old_handler)
