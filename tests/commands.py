"""Commands in processes of their own that need not import TensorFlow first.

They are forked from a server that has: real processes with real signals, files and exit codes, in a
third of a second instead of four. All of a session share a seed for hashes; what might depend on a
new one in each process, such as exact resume, is tested by real starts.
"""

import atexit
import multiprocessing
import os
import pathlib
import resource
import runpy
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence

from tests import waiting

ROOT = pathlib.Path(__file__).parents[1]

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "tensorflow",
        "keras",
        "official_lite.tools.train",
        # What a training imports on its way.
        "official_lite.checkpoint.inspection",
        "official_lite.data.arrays",
        "sklearn.datasets",
    ]
)


class Command:
    """`python <args>`, started; as far as tests need it like `subprocess.Popen` in text mode.

    Args:
        args: A script and its arguments, or `-m`, a module and its arguments.
        env: What is added to the environment.
        cwd: Where it runs.
        address_space: Its limit in bytes, as of `ulimit -v`.
    """

    def __init__(
        self,
        args: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] = ROOT,
        address_space: int = resource.RLIM_INFINITY,
    ) -> None:
        self.args = [os.fspath(one) for one in args]
        directory = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, directory)
        self._outputs = [pathlib.Path(directory) / name for name in ("out", "err")]
        environment = {**os.environ, **(env or {})}
        self._process = _CONTEXT.Process(
            target=_run,
            args=(self.args, environment, os.fspath(cwd), self._outputs, address_space),
            daemon=True,
        )
        self._process.start()
        weakref.finalize(self, self._process.kill)
        self.pid = self._process.pid

    @property
    def stdout(self) -> str:
        """What it has printed so far."""
        return _read(self._outputs[0])

    @property
    def stderr(self) -> str:
        """What it has logged so far."""
        return _read(self._outputs[1])

    @property
    def returncode(self) -> int | None:
        """None while it runs; below zero, the signal that killed it."""
        return self._process.exitcode

    def wait_for(self, text: str) -> None:
        """Until it has logged `text`."""
        waiting.wait_for(
            lambda: text in self.stderr,
            alive=lambda: self.returncode is None,
            told=lambda: f"it never said {text!r}: {self.stderr[-3000:]}",
        )

    def wait(self, timeout: float = waiting.SECONDS) -> int:
        """Until it has ended, by SIGKILL if that takes too long; its exit code."""
        self._process.join(timeout)
        if self.returncode is None:
            self.kill()
            raise AssertionError(f"It never ended: {self.stderr[-3000:]}")
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


def run(
    args: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] = ROOT,
    address_space: int = resource.RLIM_INFINITY,
) -> subprocess.CompletedProcess[str]:
    """Like `subprocess.run` with its output captured as text."""
    command = Command(args, env=env, cwd=cwd, address_space=address_space)
    returncode = command.wait()
    return subprocess.CompletedProcess(command.args, returncode, command.stdout, command.stderr)


def _read(path: pathlib.Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _run(
    args: list[str],
    environment: Mapping[str, str],
    cwd: str,
    outputs: Sequence[pathlib.Path],
    address_space: int,
) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
    for number, path in enumerate(outputs, start=1):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    if paths := environment.get("PYTHONPATH"):
        sys.path[1:1] = map(os.path.abspath, paths.split(os.pathsep))
    try:
        if args[0] == "-m":
            sys.argv, sys.path[0] = args[1:], cwd
            runpy.run_module(args[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv, sys.path[0] = args, os.path.dirname(os.path.abspath(args[0]))
            runpy.run_path(args[0], run_name="__main__")
    except Exception as error:
        # As the interpreter does. `multiprocessing` has its own way of showing an error.
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)
    finally:
        # The server's children skip them.
        atexit._run_exitfuncs()
