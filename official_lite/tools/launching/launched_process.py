"""A process started by `launch`: prefixes its output lines and describes how it ended."""

import contextlib
import ctypes
import dataclasses
import enum
import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import IO

from official_lite.common import errors

__all__ = ["LaunchedProcess", "ProcessEnd", "ProcessSpec", "Role", "say"]

# How long to wait for output after the process has ended. It is complete then, unless a child
# process keeps the pipe open.
_SECONDS_TO_READ_THE_REST = 2.0

# From prctl(2).
_PR_SET_PDEATHSIG = 1

_output_lock = threading.Lock()


class Role(enum.Enum):
    """What the end of a process means for the other processes."""

    TRAINER = "ends by itself, and the training has ended when all of them have"
    REPLACEABLE = "serves the trainers; another process may take its place while they go on"
    SERVER = "serves the trainers; without it they can't go on"


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
    """

    name: str
    role: Role
    command: Sequence[str]
    environment: Mapping[str, str]
    log_dir: pathlib.Path | None = None
    width: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessEnd:
    """How a process ended.

    Attributes:
        name: Name of the process.
        code: The `returncode` of `subprocess`: negative for a signal.
    """

    name: str
    code: int

    @property
    def exit_code(self) -> int:
        """The exit code as in a shell: 128 + the signal number for a process killed by a signal."""
        return 128 - self.code if self.code < 0 else self.code

    @property
    def may_restart(self) -> bool:
        """Whether the same command may be restarted automatically."""
        if self.code < 0:
            return -self.code != signal.SIGINT
        return self.code in errors.RESTARTABLE

    def __str__(self) -> str:
        if self.code < 0:
            # The kernel gives no other sign when it ends a process for lack of memory.
            why = " (perhaps out of memory)" if -self.code == signal.SIGKILL else ""
            return f"{self.name} was killed by {_signal_name(-self.code)}{why}"
        return f"{self.name} ended with exit code {self.code}"


class LaunchedProcess:
    """Starts a process and forwards its output line by line.

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
    """A file with the output of a process, which continues if the file can't be written.

    If its reader failed instead, the process would die of the next line that it prints.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._is_losing = self._is_torn = False

    def append(self, line: str) -> None:
        """Append a line; if that fails, it is lost, with a warning for the first of several."""
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
    try:
        return subprocess.Popen(
            spec.command,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **spec.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Keeps the terminal's Ctrl-C from reaching the process directly; the launcher forwards
            # it once.
            start_new_session=True,
            preexec_fn=_end_with_launcher if sys.platform == "linux" else None,
        )
    except OSError as error:
        raise errors.ConfigValueError(
            f"Can't start {spec.command[0]!r}: {error.strerror}. Expected a .py file or a program."
        ) from error


def _end_with_launcher() -> None:
    """Make the kernel send SIGTERM when the launcher dies, even by `kill -9`."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def say(text: str, width: int = 0) -> None:
    """Print a message of the launcher itself."""
    _write("launch", text, sys.stderr, width)


def _write(name: str, text: str, target: IO[str], width: int) -> None:
    # The reader of the output is gone, or it goes to a full disk.
    with _output_lock, contextlib.suppress(OSError):
        target.write(f"{name:<{width}} | {text}\n")
        target.flush()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
