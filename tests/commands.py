"""Commands in separate processes that do not need to import TensorFlow first.

They are forked from a server that has imported it: real processes with real signals, files and exit
codes, which start in a third of a second instead of four. All share one hash seed. Tests of results
that might depend on the seed, such as exact resume, therefore start new interpreters.
"""

import atexit
import ctypes
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
        # A training run imports these modules later.
        "official_lite.checkpoint.inspection",
        "official_lite.data.arrays",
        "sklearn.datasets",
    ]
)


class Command:
    """A running `python <args>`, with the methods of `subprocess.Popen` that tests need.

    Args:
        args: A script and its arguments, or `-m`, a module and its arguments.
        env: Variables that are added to the environment.
        cwd: The working directory.
        address_space: The limit of the address space in bytes, like `ulimit -v`.
        network: The name of a network namespace, as for `ip netns exec`; see `hosts`.
    """

    def __init__(
        self,
        args: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] = ROOT,
        address_space: int = resource.RLIM_INFINITY,
        network: str | None = None,
    ) -> None:
        self.args = [os.fspath(one) for one in args]
        directory = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, directory)
        self._outputs = [pathlib.Path(directory) / name for name in ("out", "err")]
        environment = {**os.environ, **(env or {})}
        self._process = _CONTEXT.Process(
            target=_run,
            args=(self.args, environment, os.fspath(cwd), self._outputs, address_space, network),
            daemon=True,
        )
        self._process.start()
        weakref.finalize(self, self._process.kill)
        self.pid = self._process.pid

    @property
    def stdout(self) -> str:
        """The text written to standard output so far."""
        return _read(self._outputs[0])

    @property
    def stderr(self) -> str:
        """The text written to standard error so far."""
        return _read(self._outputs[1])

    @property
    def returncode(self) -> int | None:
        """The exit code: None while the process runs, negative if a signal killed it."""
        return self._process.exitcode

    def wait_for(self, text: str) -> None:
        """Wait until the process has logged `text`."""
        waiting.wait_for(
            lambda: text in self.stderr,
            alive=lambda: self.returncode is None,
            told=lambda: f"the process never logged {text!r}: {self.stderr[-3000:]}",
        )

    def wait(self, timeout: float = waiting.SECONDS) -> int:
        """Return the exit code when the process has ended; kill it and raise after `timeout`."""
        self._process.join(timeout)
        if self.returncode is None:
            self.kill()
            raise AssertionError(f"The process did not end: {self.stderr[-3000:]}")
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
    """Run a command like `subprocess.run`, with its output captured as text."""
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
    network: str | None,
) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
    if network is not None:
        with open(f"/run/netns/{network}") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0):
                raise OSError(ctypes.get_errno(), f"can't enter the network namespace {network}")
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
        # Print the error as the interpreter would; `multiprocessing` has a different format.
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)
    finally:
        # A child process of the fork server would not call the exit functions.
        atexit._run_exitfuncs()
