"""A rendezvous of all workers of a cluster, with a time limit, that names the missing workers.

TensorFlow waits forever for a missing worker and does not report which one it is. Workers therefore
run their own rendezvous before TensorFlow starts. Each worker listens at its own address, where
TensorFlow will listen later, and polls all other workers until each of them reports that it has
heard from everyone::

    worker 0                                  worker 1
      who are you? I am worker 0        ->
                                        <-    worker 1; I still miss: worker 2
      who are you? I am worker 0        ->
                                        <-    worker 1; I miss no one

A worker leaves when no other worker is missing anyone and all others know that it is missing no one
either. By then, no worker has a question left for the listener that closes. This module does not
need TensorFlow.

If the rendezvous reveals an invalid cluster, the run ends at once on all workers that are present.
Examples are different descriptions of the cluster, an address that is in use, and two processes
with the same index.

If the environment variable `OFFICIAL_LITE_CLUSTER_TOKEN` is set, each message proves that its
sender knows the token and that nothing in it was changed. Other connections are ignored and
counted. `launch` sets the variable.
"""

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import json
import os
import socket
import uuid
from collections.abc import Mapping
from typing import Any

from absl import logging

from official_lite.common import errors, files
from official_lite.common.cluster import reachability, tf_config

__all__ = ["meet"]

_SECONDS_PER_CALL = 5.0

# With more than 50 workers, the calls are spread out further to limit the load.
_SECONDS_BETWEEN_CALLS = 0.2

_CALLS_PER_SECOND = 250

_CALLS_AT_A_TIME = 64

_SECONDS_BETWEEN_REMINDERS = 15.0

# The time that the others have to learn why this worker leaves.
_SECONDS_OF_FAREWELL = 1.0

_MOST_BYTES = 2**22

# More connections close the oldest, so that idle ones neither use up all file descriptors nor keep
# workers out, which speak at once.
_MOST_CONNECTIONS = 64

# The keys of our messages.
_QUESTION = {"name", "id", "process", "cluster", "jobs", "proof"}

_ANSWER = {"missing", "problem", "is_config"}

# TensorFlow cannot leave and rejoin a cluster, so one rendezvous per process is enough.
_met: tf_config.ClusterConfig | None = None


def meet(found: tf_config.ClusterConfig, seconds: float | None = None) -> None:
    """Wait until all workers are present; return at once if they have met before.

    Args:
        found: The cluster and the task of this process.
        seconds: The longest time to wait, in seconds. Defaults to `reachability.patience()`.

    Raises:
        errors.ClusterError: If a worker did not answer in time.
        errors.ConfigValueError: If the description of the cluster is invalid.
    """
    global _met
    if found == _met or found.num_workers < 2 or found.task_type not in ("chief", "worker"):
        return
    asyncio.run(_RollCall(found, reachability.patience() if seconds is None else seconds).run())
    _met = found


class _RollCall:
    """The part of one worker in the rendezvous."""

    def __init__(self, found: tf_config.ClusterConfig, seconds: float) -> None:
        self._name = found.name
        self._addresses = found.members("chief", "worker")
        self._jobs = {job: list(addresses) for job, addresses in found.jobs.items()}
        text = json.dumps(self._jobs, sort_keys=True)
        self._digest = hashlib.sha256(text.encode()).hexdigest()
        self._seconds = seconds
        self._id = uuid.uuid4().hex
        self._process = f"process {os.getpid()} on {socket.gethostname()}"
        self._token = os.environ.get(reachability.TOKEN_VARIABLE, "").encode()
        self._connections: dict[asyncio.StreamWriter, None] = {}  # The oldest first.
        self._num_strangers = 0
        others = self._addresses.keys() - {self._name}
        # `_missing` holds the workers that have not answered, and why. `_unready` holds those that
        # have not yet reported that they miss no one. `_untold` holds those that do not yet know
        # that this worker misses no one.
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
            # interfaces, as TensorFlow does. A loopback address means a cluster on one machine, to
            # which no other machine should connect.
            return await asyncio.start_server(
                self._answer,
                host if _is_loopback(host) else None,
                port,
                limit=_MOST_BYTES,
                backlog=_MOST_CONNECTIONS,
            )
        except OSError as error:
            raise errors.ConfigValueError(
                f"{self._name} can't listen at its address {address}: "
                f"{reachability.reason(error)}. Each process of a cluster needs an index and an "
                "address of its own."
            ) from error

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            self._connections[writer] = None
            if len(self._connections) > max(_MOST_CONNECTIONS, len(self._addresses)):
                oldest = next(iter(self._connections))
                del self._connections[oldest]
                oldest.transport.abort()
            try:
                await self._converse(reader, writer)
            except ValueError:
                self._num_strangers += 1
            except (OSError, asyncio.CancelledError):
                # Those that are open at the end are canceled; asyncio would log each as an error.
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
        # The other side closes the connection when it has read the answer.
        await asyncio.wait_for(reader.read(), _SECONDS_PER_CALL)
        self._hear(question, is_told=not answer["missing"])

    def _introduction(self) -> dict[str, Any]:
        """Return what each message of this worker begins with."""
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
        """Return a message of another worker.

        Raises:
            ValueError: The message is not from a worker of this cluster.
        """
        message = files.parse_json(line)
        if not message.keys() >= keys:
            raise ValueError("not a message of a worker")
        proof = str(message.pop("proof")).encode()
        if not hmac.compare_digest(self._proof(message).encode(), proof):
            raise ValueError("a different token")
        return message

    def _hear(self, question: Mapping[str, Any], *, is_told: bool) -> None:
        """Process what another worker's question reveals about that worker."""
        name = question["name"]
        if question["cluster"] != self._digest:
            self._fail(self._disagreement(question))
        elif name == self._name and question["id"] != self._id:
            self._fail(self._two_in_one_place(question))
        elif is_told:
            self._untold.discard(name)
            self._look_whether_done()

    async def _ask(self, name: str) -> None:
        """Poll a worker until it misses no one.

        A worker polls its own address, too, because another process may answer there.
        """
        pause = max(_SECONDS_BETWEEN_CALLS, len(self._addresses) / _CALLS_PER_SECOND)
        while not self._outcome.done():
            try:
                async with self._calls:
                    answer = await asyncio.wait_for(self._call(name), _SECONDS_PER_CALL)
            except (OSError, ValueError, TimeoutError) as error:
                if name in self._missing:
                    self._missing[name] = reachability.reason(error)
            else:
                if self._is_all_said(name, answer):
                    return
            await asyncio.sleep(pause)

    async def _call(self, name: str) -> dict[str, Any]:
        host, port = tf_config.split_address(self._addresses[name])
        reader, writer = await asyncio.open_connection(host, port, limit=_MOST_BYTES)
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
        """Record the first reason to leave."""
        self._problem = self._problem or problem
        if not self._outcome.done():
            self._outcome.set_exception(self._problem)

    def _who_is_missing(self) -> str:
        strangers = (
            f" Ignored {self._num_strangers} connections that do not belong to this cluster."
            if self._num_strangers
            else ""
        )
        return (
            f"{'; '.join(self._waits()) or 'A worker that was ready before'} did not answer "
            f"{self._name} within {self._seconds:g} s. Check that all processes are started and "
            f"reachable from this host. {reachability.TIMEOUT_VARIABLE} sets the time limit."
            f"{strangers}"
        )

    def _waits(self) -> list[str]:
        own = [f"{name} at {self._addresses[name]} ({why})" for name, why in self._missing.items()]
        theirs = [
            f"{', '.join(missing)} (missed by {name})"
            for name, missing in sorted(self._unready.items())
            if missing and not own
        ]
        return own or theirs

    def _disagreement(self, other: Mapping[str, Any]) -> errors.ConfigValueError:
        return errors.ConfigValueError(
            f"The TF_CONFIG of {self._name} and of {other['name']} ({other['process']}) describe "
            f"different clusters. Here: {json.dumps(self._jobs)}; there: "
            f"{json.dumps(other['jobs'])}."
        )

    def _two_in_one_place(self, other: Mapping[str, Any]) -> errors.ConfigValueError:
        return errors.ConfigValueError(
            f"Two processes use the name {self._name}: {self._process} (this one) and "
            f"{other['process']}. Give each process its own index in TF_CONFIG, and start it on "
            f"the host of its address, {self._addresses[self._name]}."
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
