"""Start and supervise a cluster of training processes on this machine.

    python -m official_lite.tools launch --workers=2 -- train.py --experiment=… --mode=train
    python -m official_lite.tools launch --workers=2 --ps=1 -- train.py …
    python -m official_lite.tools launch --elastic=1:4 --max_restarts=9 -- train.py …

The first command starts a cluster for `multi_worker_mirrored`. The second one also starts a chief
and a parameter server, for `parameter_server`. The third one continues with fewer workers after
losing one, and with all of them when the lost worker is back; see docs/elastic.md. The config
selects the strategy: --set=runtime.distribution_strategy=…

TF_CONFIG gives each process the addresses of the cluster, which are free ports of 127.0.0.1. Each
line of output starts with the name of its process: `worker 1 | …`. SIGTERM and Ctrl-C are passed
on, so that all processes save and stop. A second signal kills them. If a process fails, the command
names it, stops the others, and returns its exit code. See docs/clusters.md.
"""

import argparse
import contextlib
import ctypes
import dataclasses
import enum
import json
import math
import os
import pathlib
import random
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import IO

from official_lite.common import cluster, errors, tf_config

_HOST = "127.0.0.1"
# Candidate ports below the ephemeral range: an outgoing connection could take an ephemeral port
# before a process listens on it.
_PORTS = range(10000, 32000)
_MAX_TRIES = 1000

# The time to wait for the output of a process that has ended. The output is usually complete, but a
# child of the process may keep the pipe open.
_SECONDS_TO_READ_THE_REST = 2.0

# The option `PR_SET_PDEATHSIG` of prctl(2).
_PR_SET_PDEATHSIG = 1

# Maps each signal that the launcher handles to the signal that it forwards. SIGHUP becomes SIGTERM,
# so that processes save a checkpoint when the terminal is closed.
_SIGNALS = {
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGINT: signal.SIGINT,
    signal.SIGHUP: signal.SIGTERM,
}
_SECONDS_BETWEEN_LOOKS = 0.05

# Signals that the launcher receives within this time after the first are one request to stop.
_SECONDS_OF_ONE_REQUEST = 0.5

# The exit codes of trainers that have stopped on request and saved everything.
_STOPPED = (errors.ExitCode.PREEMPTED, errors.ExitCode.INTERRUPTED)

# The number of grace periods in which trainers must save if the request to stop did not come from
# outside the launcher.
_GRACE_PERIODS_TO_SAVE = 10

_output_lock = threading.Lock()


class Role(enum.Enum):
    """What the end of a process means for the other processes."""

    TRAINER = "ends by itself; the training has ended when all trainers have"
    REPLACEABLE = "serves the trainers; another process may replace it while they continue"
    SERVER = "serves the trainers, which can't continue without it"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """A process to start.

    Attributes:
        name: Prefix of its output lines, such as `worker 1`.
        role: What its end means for the other processes.
        command: Program and arguments.
        environment: Environment variables, in addition to those of this process.
        log_dir: Directory in which its output is also written to a file; None for no file.
        width: Length of the longest name, to align the output lines.
        ends_with_launcher: Whether it receives SIGTERM when the launcher dies.
    """

    name: str
    role: Role
    command: Sequence[str]
    environment: Mapping[str, str]
    log_dir: pathlib.Path | None = None
    width: int = 0
    ends_with_launcher: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessEnd:
    """How a process ended.

    Attributes:
        name: Name of the process.
        code: The `returncode` of `subprocess`: negative for a signal.
        is_lost: Whether the process ended with 0, although the training still needs it.
    """

    name: str
    code: int
    is_lost: bool = False

    @property
    def exit_code(self) -> int:
        """The exit code as in a shell: 128 + the signal number for a process killed by a signal.

        If the process is lost, this is the code for a missing process.
        """
        if self.is_lost:
            return int(errors.ExitCode.CLUSTER)
        return 128 - self.code if self.code < 0 else self.code

    @property
    def may_restart(self) -> bool:
        """Whether the same command may be restarted automatically."""
        if self.code < 0:
            return -self.code != signal.SIGINT
        return self.exit_code in errors.RESTARTABLE

    def __str__(self) -> str:
        if self.code < 0:
            # A SIGKILL is the only sign that the kernel has ended a process for lack of memory.
            why = " (perhaps out of memory)" if -self.code == signal.SIGKILL else ""
            return f"{self.name} was killed by {_signal_name(-self.code)}{why}"
        why = " although the training still needs it" if self.is_lost else ""
        return f"{self.name} ended with exit code {self.code}{why}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--workers", type=_count, metavar="N", help="The number of training processes."
    )
    parser.add_argument(
        "--elastic",
        type=_range,
        metavar="MIN:MAX",
        help=(
            "Instead of --workers: start with MAX processes. After one was killed, continue from "
            "the last checkpoint with fewer. Only divisors of MAX are used, so that "
            "--set=trainer.virtual_replicas=MAX gives the same result with any of them."
        ),
    )
    parser.add_argument(
        "--rejoin_secs",
        type=float,
        default=600.0,
        metavar="S",
        help=(
            "With --elastic, the time in seconds after which lost workers are assumed to be back: "
            "the others save and stop, and MAX processes continue. Default: %(default)g."
        ),
    )
    parser.add_argument(
        "--ps",
        type=_count,
        default=0,
        metavar="N",
        help="The number of parameter servers; also starts a chief.",
    )
    parser.add_argument(
        "--data_workers",
        type=_count,
        default=0,
        metavar="N",
        help="The number of tf.data service workers that read the input.",
    )
    parser.add_argument(
        "--max_restarts",
        type=_count,
        default=0,
        metavar="N",
        help=(
            "The number of restarts after a process was killed or preempted. Errors in the "
            "config, code or data never cause a restart."
        ),
    )
    parser.add_argument(
        "--grace_secs",
        type=float,
        default=30.0,
        metavar="S",
        help=(
            "The time in seconds that other processes get to stop after one has failed, before "
            "they are killed. Default: %(default)g."
        ),
    )
    parser.add_argument(
        "--log_dir", type=pathlib.Path, help="A directory for one log file per process."
    )
    parser.add_argument(
        "command",
        nargs="+",
        help="The program (train.py or another) and its arguments, after `--`.",
    )


def run(args: argparse.Namespace) -> int:
    """Start the cluster, restart it if allowed, and return the exit code.

    The exit code is taken from the first process that failed.
    """
    sizes = _sizes(args)
    if args.log_dir is not None:
        args.log_dir.mkdir(parents=True, exist_ok=True)
    restarts = Restarts(args.max_restarts)
    size = sizes[0]
    while True:
        specs = plan(
            args.command,
            workers=size,
            ps=args.ps,
            data_workers=args.data_workers,
            log_dir=args.log_dir,
        )
        started = LaunchedCluster(
            specs,
            restarts=restarts,
            grace_secs=args.grace_secs,
            most_secs=None if size == sizes[0] else args.rejoin_secs,
        )
        failure = started.run()
        if failure is None:
            return int(errors.ExitCode.DONE)
        if started.was_asked_to_stop or not failure.may_restart:
            return failure.exit_code
        if started.reached_limit:
            size = sizes[0]
            say(f"Continuing with {size} workers again.", specs[0].width)
            continue
        if not restarts.take():
            return failure.exit_code
        how = ""
        if failure.code < 0 and size != sizes[-1]:
            size = sizes[sizes.index(size) + 1]
            how = f", with {size} worker{'s' if size > 1 else ''}"
        say(f"Restart {restarts.taken} of {restarts.most}{how}.", specs[0].width)


def _sizes(args: argparse.Namespace) -> list[int]:
    """Return the worker counts to use, in decreasing order."""
    if args.elastic is None:
        if not args.workers:
            raise errors.ConfigValueError(
                f"--workers is {args.workers}; expected at least 1. Pass --workers=N or "
                "--elastic=MIN:MAX."
            )
        return [args.workers]
    if args.workers is not None or args.ps:
        raise errors.ConfigValueError(
            "--elastic can't be combined with --workers or --ps: it selects the number of workers "
            "by itself, and parameter servers replace lost workers without a restart. Remove "
            "--elastic or the other flags."
        )
    if not args.max_restarts:
        raise errors.ConfigValueError(
            "--elastic requires --max_restarts. Set it to the allowed number of restarts."
        )
    least, most = args.elastic
    sizes = [size for size in range(most, least - 1, -1) if most % size == 0]
    if len(sizes) == 1:
        smaller = max((size for size in range(1, most) if most % size == 0), default=None)
        advice = f"Use --elastic={smaller}:{most}, or" if smaller else "Use"
        raise errors.ConfigValueError(
            f"--elastic={least}:{most} allows only {most} workers, because only divisors of {most} "
            f"are used. {advice} --workers={most}."
        )
    return sizes


def plan(
    command: Sequence[str],
    *,
    workers: int,
    ps: int = 0,
    data_workers: int = 0,
    log_dir: pathlib.Path | None = None,
) -> list[ProcessSpec]:
    """Plan the processes of a cluster, at ports that are currently free.

    Args:
        command: Command of each process; a `.py` file is run by the current Python.
        workers: Number of training processes or, with parameter servers, of the workers to which
            the chief dispatches steps.
        ps: Number of parameter servers.
        data_workers: Number of workers of a tf.data service; 0 starts no service.
        log_dir: Directory in which the output of each process is also written to a file.
    """
    counts = {"chief": int(ps > 0), "worker": workers, "ps": ps}
    num_service_ports = data_workers + 1 if data_workers else 0
    ports = iter(_free_ports(sum(counts.values()) + num_service_ports))
    addresses = {job: _addresses(ports, count) for job, count in counts.items() if count}
    service = _addresses(ports, num_service_ports)
    program = [sys.executable, *command] if command[0].endswith(".py") else list(command)
    if service:
        program.append(f"--tf_data_service=grpc://{service[0]}")
    token = os.environ.get(cluster.TOKEN_VARIABLE) or secrets.token_hex(16)
    specs = [*_data_service(service), *_cluster(program, addresses, token)]
    width = max(len(spec.name) for spec in specs)
    return [dataclasses.replace(spec, log_dir=log_dir, width=width) for spec in specs]


def _cluster(
    program: Sequence[str], addresses: Mapping[str, Sequence[str]], token: str
) -> Iterator[ProcessSpec]:
    # Start servers first, so that they are running when other processes connect to them.
    for job in sorted(addresses, key=("ps", "worker", "chief").index):
        for index in range(len(addresses[job])):
            task = {"type": job, "index": index}
            role = _role(job, has_chief="chief" in addresses)
            yield ProcessSpec(
                name=tf_config.task_name(job, index),
                role=role,
                # Do not stop the servers with the launcher: the chief needs them to save. They end
                # by themselves after the chief.
                ends_with_launcher=role is Role.TRAINER,
                command=program,
                environment={
                    "TF_CONFIG": json.dumps({"cluster": addresses, "task": task}),
                    cluster.TOKEN_VARIABLE: token,
                },
            )


def _role(job: str, *, has_chief: bool) -> Role:
    """Return the role of a task in the cluster.

    With parameter servers, only the chief ends without a signal, and workers can be replaced.
    """
    roles = Role
    if job == "ps":
        return roles.SERVER
    return roles.REPLACEABLE if job == "worker" and has_chief else roles.TRAINER


def _data_service(addresses: Sequence[str]) -> Iterator[ProcessSpec]:
    """Yield the specs of a dispatcher at the first address and of workers at the others."""
    tool = [sys.executable, "-m", "official_lite.tools", "data_service"]
    for index, address in enumerate(addresses):
        _, port = tf_config.split_address(address)
        if index == 0:
            role, arguments = Role.SERVER, ["dispatcher", f"--port={port}"]
        else:
            role = Role.REPLACEABLE
            arguments = ["worker", f"--dispatcher={addresses[0]}", f"--port={port}"]
        yield ProcessSpec(
            name=f"data worker {index - 1}" if index else "data dispatcher",
            role=role,
            command=[*tool, *arguments],
            environment={},
        )


def _addresses(ports: Iterator[int], count: int) -> list[str]:
    return [f"{_HOST}:{next(ports)}" for _ in range(count)]


def _free_ports(count: int) -> list[int]:
    """Return ports that no process listens on."""
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        for port in random.sample(_PORTS, _MAX_TRIES):
            if len(found) == count:
                return found
            one = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                one.bind((_HOST, port))
                found.append(port)
    raise errors.ClusterError(
        f"Found fewer than {count} free ports from {_PORTS.start} to {_PORTS.stop - 1}. "
        "Stop programs that use ports in this range."
    )


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of processes; pass a whole number"
        )
    return int(text)


def _range(text: str) -> tuple[int, int]:
    least, _, most = text.partition(":")
    if not (least.isdecimal() and most.isdecimal() and 0 < int(least) <= int(most)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a range MIN:MAX; pass, for example, 1:4")
    return int(least), int(most)


class LaunchedProcess:
    """A process that is started with its output forwarded line by line.

    Raises:
        errors.ConfigValueError: The program can't be started.
    """

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self._process = _start(spec)
        self._log = None
        if spec.log_dir is not None:
            self._log = _Log(spec.log_dir / f"{spec.name.replace(' ', '_')}.log")
        self._readers = [
            threading.Thread(target=self._pass_on, args=streams, daemon=True)
            for streams in ((self._process.stdout, sys.stdout), (self._process.stderr, sys.stderr))
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self) -> ProcessEnd | None:
        """Return how the process ended; None while it runs."""
        code = self._process.poll()
        return None if code is None else ProcessEnd(name=self.spec.name, code=code)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process and everything it has started."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Wait for the process to end and for the rest of its output."""
        self._process.wait()
        for reader in self._readers:
            reader.join(_SECONDS_TO_READ_THE_REST)
        if self._log is not None:
            self._log.close()

    def _pass_on(self, stream: IO[bytes], target: IO[str]) -> None:
        with stream:
            for line in stream:
                text = line.decode(errors="replace").rstrip("\r\n")
                _write(self.spec.name, text, target, self.spec.width)
                if self._log is not None:
                    self._log.append(text)


class _Log:
    """A log file of a process's output. Errors when writing it do not stop the process.

    Otherwise, an error would end the thread that reads the output, and the process would fail when
    it prints its next line.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._is_losing = self._is_torn = False

    def append(self, line: str) -> None:
        """Append a line. If writing fails, drop it, and warn unless the last write also failed."""
        data = b"\n" * self._is_torn + line.encode() + b"\n"
        try:
            self._is_torn = self._file.write(data) < len(data)
        except OSError as error:
            if not self._is_losing:
                say(f"Can't write {self._path}, so lines are lost: {error.strerror}.")
            self._is_losing = True
        else:
            self._is_losing = False

    def close(self) -> None:
        self._file.close()


def _start(spec: ProcessSpec) -> subprocess.Popen[bytes]:
    is_bound = spec.ends_with_launcher and sys.platform == "linux"
    try:
        return subprocess.Popen(
            spec.command,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **spec.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Keep the terminal's Ctrl-C from reaching the process directly, because the launcher
            # forwards it.
            start_new_session=True,
            preexec_fn=_end_with_launcher if is_bound else None,
        )
    except OSError as error:
        raise errors.ConfigValueError(
            f"Can't start {spec.command[0]!r}: {error.strerror}. Expected a .py file or a program."
        ) from error


def _end_with_launcher() -> None:
    """Make the kernel send SIGTERM to this process when the launcher dies, even by SIGKILL."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def say(text: str, width: int = 0) -> None:
    """Print a message of the launcher itself."""
    _write("launch", text, sys.stderr, width)


def _write(name: str, text: str, target: IO[str], width: int) -> None:
    # Ignore failed writes: the reader of the output may have exited, or the disk may be full.
    with _output_lock, contextlib.suppress(OSError):
        target.write(f"{name:<{width}} | {text}\n")
        target.flush()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Restarts:
    """The number of allowed restarts, and of those already taken."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0

    def take(self) -> bool:
        """Return whether another restart is allowed, and count it if so."""
        if self.taken >= self.most:
            return False
        self.taken += 1
        return True


class LaunchedCluster:
    """The processes of a cluster, run until all trainers have ended or one process has failed.

    ::

        cluster = LaunchedCluster(specs, restarts=Restarts(1), grace_secs=30)
        failure = cluster.run()      # None if all trainers have ended with 0

    Attributes:
        reached_limit: Whether the cluster was asked to stop because it has run for `most_secs`.

    Args:
        specs: The processes to start.
        restarts: How often replaceable processes may be replaced; shared with other starts.
        grace_secs: How long the other processes may take to end after one has failed, in seconds.
            A server that ends with 0 has failed if a trainer still runs after this time.
        most_secs: How long the cluster may run before it is asked to save and stop, in seconds;
            None sets no limit.
    """

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        *,
        restarts: Restarts,
        grace_secs: float,
        most_secs: float | None = None,
    ) -> None:
        self._specs = specs
        self._restarts = restarts
        self._grace_secs = grace_secs
        self._width = max(spec.width for spec in specs)
        self._processes: list[LaunchedProcess] = []
        self._asked_time: float | None = None
        # The signal that requests the trainers to stop, and the trainers to which it was sent.
        self._request: signal.Signals | None = None
        self._asked: list[LaunchedProcess] = []
        # For each server that has exited with code 0, the time at which this was first observed.
        self._end_times: dict[LaunchedProcess, float] = {}
        self._deadline = None if most_secs is None else time.monotonic() + most_secs
        self.reached_limit = False

    @property
    def was_asked_to_stop(self) -> bool:
        """Whether the launcher has received a signal."""
        return self._asked_time is not None

    @property
    def _is_stopping(self) -> bool:
        return self.was_asked_to_stop or self.reached_limit

    @property
    def _trainers(self) -> list[LaunchedProcess]:
        return [each for each in self._processes if each.spec.role is Role.TRAINER]

    def run(self) -> ProcessEnd | None:
        """Start the processes and return when all have ended.

        Signals are forwarded to the trainers, and a second one kills all processes. No process
        outlives this call, even if it raises.

        Returns:
            The end of the process that failed first; None if all trainers have ended with 0.
        """
        with self._signals_passed_on():
            try:
                for spec in self._specs:
                    self._processes.append(LaunchedProcess(spec))
                # Forward a request that arrived earlier to trainers that were started after it.
                if self._request is not None:
                    self._ask_to_stop(self._request)
                failure = self._watch()
                if failure is not None:
                    self._wait_for_the_others(failure)
                return failure
            finally:
                for process in self._processes:
                    process.kill()
                for process in self._processes:
                    process.close()

    def _watch(self) -> ProcessEnd | None:
        while True:
            ends = [trainer.end() for trainer in self._trainers]
            if all(end is not None and end.code == 0 for end in ends):
                return None
            found = [(process, self._failure(process)) for process in self._processes]
            failures = [(process, end) for process, end in found if end is not None]
            # If several processes failed at once, report the likely cause: a process killed by a
            # signal rather than a process that lost its peer.
            for process, end in sorted(failures, key=lambda pair: _as_consequence(pair[1])):
                if not self._is_replaced(process, end):
                    return end
            if self._deadline is not None and time.monotonic() > self._deadline:
                self._deadline, self.reached_limit = None, True
                self._ask_to_stop(signal.SIGTERM)
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _failure(self, process: LaunchedProcess) -> ProcessEnd | None:
        """Return how a process failed; None if it is running or has ended as expected."""
        end = process.end()
        if end is None or end.code:
            return end
        if process.spec.role is Role.TRAINER or self._is_stopping:
            return None
        # A server exits with 0 on SIGTERM, but also when the run is complete. In that case it may
        # exit shortly before the trainers, so report it as lost only after the grace period.
        now = time.monotonic()
        is_lost = now - self._end_times.setdefault(process, now) >= self._grace_secs
        return dataclasses.replace(end, is_lost=True) if is_lost else None

    def _is_replaced(self, process: LaunchedProcess, end: ProcessEnd) -> bool:
        """Replace a process that has ended, if allowed, and return whether it was replaced."""
        if process.spec.role is not Role.REPLACEABLE or self.was_asked_to_stop:
            return False
        if not end.may_restart or not self._restarts.take():
            return False
        say(
            f"{end}. The other processes continue; restart {self._restarts.taken} of "
            f"{self._restarts.most}.",
            self._width,
        )
        process.close()
        self._processes[self._processes.index(process)] = LaunchedProcess(process.spec)
        return True

    def _wait_for_the_others(self, failure: ProcessEnd) -> None:
        """Report a failure, and wait until the trainers have stopped or their time is up.

        After a failure, the trainers have one grace period. If they have only been requested to
        stop, they have `_GRACE_PERIODS_TO_SAVE` grace periods, or unlimited time if the request
        came from outside the launcher. Afterwards, the caller stops all remaining processes,
        including the servers.
        """
        trainers = self._trainers
        patience = self._grace_secs
        if self._is_stopping:
            say(f"{failure} after a signal.", self._width)
            if failure.code in _STOPPED:
                periods = _GRACE_PERIODS_TO_SAVE
                patience = math.inf if self.was_asked_to_stop else periods * self._grace_secs
        else:
            first = "" if failure.is_lost else " first"
            say(f"{failure}{first}. Stopping the other processes.", self._width)
            # If another trainer fails, the trainers notice by themselves. If a tf.data dispatcher
            # or a worker without a replacement is lost, they would wait forever, so request them to
            # save and stop.
            if failure.name not in [each.spec.name for each in trainers]:
                self._ask_to_stop(signal.SIGTERM)
        deadline = time.monotonic() + patience
        while any(each.end() is None for each in trainers) and time.monotonic() < deadline:
            if any(_has_failed(each.end()) for each in trainers):
                deadline = min(deadline, time.monotonic() + self._grace_secs)
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        for process in trainers:
            if (end := process.end()) is None:
                say(f"{process.spec.name} did not stop in time. Killing it.", self._width)
            elif end.name != failure.name:
                say(f"{end}.", self._width)

    @contextlib.contextmanager
    def _signals_passed_on(self) -> Iterator[None]:
        # A signal that is ignored stays ignored, such as SIGHUP under `nohup`.
        old = {
            number: signal.signal(number, self._on_signal)
            for number in _SIGNALS
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if self._asked_time is None:
            self._asked_time = now
            self._ask_to_stop(_SIGNALS[signal.Signals(number)])
        elif now - self._asked_time > _SECONDS_OF_ONE_REQUEST:
            for process in self._processes:
                process.kill()

    def _ask_to_stop(self, number: signal.Signals) -> None:
        """Request each trainer to save and stop, but only once: a second signal would kill it."""
        self._request = self._request or number
        for trainer in self._trainers:
            if trainer not in self._asked:
                self._asked.append(trainer)
                trainer.send(self._request)


def _has_failed(end: ProcessEnd | None) -> bool:
    """Return whether a trainer has ended with neither success nor a requested stop."""
    return end is not None and end.code != 0 and end.code not in _STOPPED


def _as_consequence(end: ProcessEnd) -> int:
    """Return a sort key: 0 for a likely cause of the failure, more for a likely consequence."""
    if end.code < 0:
        return 0
    return 2 if end.code == errors.ExitCode.CLUSTER else 1
