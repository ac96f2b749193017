"""A process that `launch` has started: its lines get its name, and its end is put into words."""

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

# After its end its output is complete, unless a child of its own holds on to it.
_SECONDS_TO_READ_THE_REST = 2.0

# Of prctl(2).
_PR_SET_PDEATHSIG = 1

_output_lock = threading.Lock()


class Role(enum.Enum):
    """What the end of a process means to the others."""

    TRAINER = "ends by itself, and the training has ended when all of them have"
    REPLACEABLE = "serves the trainers; another process may take its place while they go on"
    SERVER = "serves the trainers; without it they can't go on"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """What to start.

    Attributes:
        name: What stands before its lines, such as `worker 1`.
        role: What its end means.
        command: Program and arguments.
        environment: Variables beside those of this process.
        log_dir: Where its lines are kept as well; None keeps none.
        width: Of the longest name, so that lines stand below one another.
    """

    name: str
    role: Role
    command: Sequence[str]
    environment: Mapping[str, str]
    log_dir: pathlib.Path | None = None
    width: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessEnd:
    """How a process has ended.

    Attributes:
        name: Of the process.
        code: What `subprocess` calls `returncode`: negative for a signal.
    """

    name: str
    code: int

    @property
    def exit_code(self) -> int:
        """As a shell has it: 128 and the signal's number for a process that a signal has killed."""
        return 128 - self.code if self.code < 0 else self.code

    @property
    def may_restart(self) -> bool:
        """Whether the same command may be started again by a machine."""
        if self.code < 0:
            return -self.code != signal.SIGINT
        return self.code in errors.RESTARTABLE

    def __str__(self) -> str:
        if self.code < 0:
            return f"{self.name} was killed by {_signal_name(-self.code)}"
        return f"{self.name} ended with exit code {self.code}"


class LaunchedProcess:
    """Starts a process and passes on what it says, line by line.

    Raises:
        errors.ConfigValueError: There is no such program.
    """

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self._process = _start(spec)
        self._log = self._open_log()
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
        """How it has ended; None while it runs."""
        code = self._process.poll()
        return None if code is None else ProcessEnd(name=self.spec.name, code=code)

    def send(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kills it, and all that it has started."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Waits for its end and for the rest of its output."""
        self._process.wait()
        for reader in self._readers:
            reader.join(_SECONDS_TO_READ_THE_REST)
        if self._log is not None:
            self._log.close()

    def _open_log(self) -> IO[str] | None:
        if self.spec.log_dir is None:
            return None
        path = self.spec.log_dir / f"{self.spec.name.replace(' ', '_')}.log"
        return path.open("a", encoding="utf-8")

    def _pass_on(self, stream: IO[bytes], target: IO[str]) -> None:
        with stream:
            for line in stream:
                text = line.decode(errors="replace").rstrip("\r\n")
                _write(self.spec.name, text, target, self.spec.width)
                if self._log is not None:
                    with _output_lock:
                        self._log.write(f"{text}\n")
                        self._log.flush()


def _start(spec: ProcessSpec) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            spec.command,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **spec.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Out of reach of the terminal's Ctrl-C, which is passed on to it, once.
            start_new_session=True,
            preexec_fn=_end_with_launcher if sys.platform == "linux" else None,
        )
    except OSError as error:
        raise errors.ConfigValueError(
            f"Can't start {spec.command[0]!r}: {error.strerror}. Wanted: a .py file or a program."
        ) from error


def _end_with_launcher() -> None:
    """Has the kernel send SIGTERM when the launcher is gone, though it was killed by `kill -9`."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def say(text: str, width: int = 0) -> None:
    """What the launcher itself has to say."""
    _write("launch", text, sys.stderr, width)


def _write(name: str, text: str, target: IO[str], width: int) -> None:
    with _output_lock, contextlib.suppress(BrokenPipeError):
        target.write(f"{name:<{width}} | {text}\n")
        target.flush()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
