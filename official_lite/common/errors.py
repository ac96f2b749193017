"""The errors that users can cause, and the exit code of the process for each.

::

    OfficialLiteError
    ├── ConfigError                 the request can't be run                         exit 2
    │   ├── UnknownKeyError         (KeyError)     a name that no config field has
    │   ├── UnknownNameError        (LookupError)  a name that no registry holds
    │   ├── ConfigTypeError         (TypeError)    a value of the wrong type
    │   ├── ConfigValueError        (ValueError)   the right type, but not usable
    │   │   └── MissingStepError                   a step that the task does not have
    │   ├── NotAFileError           (OSError)      a path that is not a regular file
    │   └── LockedConfigError       (ValueError)   a write after the config was locked
    ├── DataError                   (ValueError)   the input can't be read           exit 3
    ├── DivergedError               (RuntimeError) the loss diverged                 exit 4
    ├── CheckpointError             (ValueError)   no usable checkpoint              exit 5
    │   └── DiskFullError           (OSError)      no space for a file
    ├── OutOfMemoryError            (MemoryError)  no memory for a tensor or array   exit 1
    ├── ModelDirBusyError           (RuntimeError) another run trains there          exit 6
    ├── ClusterError                (RuntimeError) another process is missing        exit 7
    └── PreemptedError              (RuntimeError) stopped by a signal; state saved  exit 42
        └── StoppedByUserError                     the same, by Ctrl-C               exit 130

Each error is also the built-in exception shown in parentheses, so code that catches `KeyError` or
`ValueError` works as expected.
"""

import enum
from collections.abc import Callable
from typing import ClassVar


class ExitCode(enum.IntEnum):
    """The exit codes of the process; each has exactly one meaning."""

    DONE = 0
    FAILED = 1
    CONFIG = 2
    DATA = 3
    DIVERGED = 4
    CHECKPOINT = 5
    BUSY = 6
    CLUSTER = 7
    UNVERIFIED = 8
    PREEMPTED = 42
    INTERRUPTED = 130
    TERMINATED = 143


# The exit codes after which a supervisor may restart the same command automatically. Any other
# code means that the run is complete or that a human must intervene.
RESTARTABLE = frozenset({ExitCode.CLUSTER, ExitCode.PREEMPTED, ExitCode.TERMINATED})


class OfficialLiteError(Exception):
    """The base class of all errors. `common.app.run` exits the process with its `exit_code`."""

    exit_code = ExitCode.FAILED

    # IPython calls this method for the lines that it shows for the error. `error_report` sets it.
    _render_traceback_: ClassVar[Callable[[BaseException], list[str]]]

    # AutoGraph preserves the class of an error from a traced step only if the constructor of the
    # class is `Exception.__init__`.
    __init__ = Exception.__init__

    def __str__(self) -> str:
        # `KeyError` would show the repr of its argument and so put quotes around the message.
        return str(self.args[0]) if len(self.args) == 1 else super().__str__()


class ConfigError(OfficialLiteError):
    """An invalid request. Nothing was started and nothing was written."""

    exit_code = ExitCode.CONFIG


class UnknownKeyError(ConfigError, KeyError):
    """A key, field or attribute that the config does not have."""


class UnknownNameError(ConfigError, LookupError):
    """A name that is not registered."""


class ConfigTypeError(ConfigError, TypeError):
    """A value whose type the field does not accept."""


class ConfigValueError(ConfigError, ValueError):
    """A value of the right type that is not usable."""


class MissingStepError(ConfigValueError):
    """A step of a task that raises `NotImplementedError`, in a mode that requires this step."""


class NotAFileError(ConfigError, OSError):
    """A path that is a directory, pipe, device or broken link where a regular file is expected."""


class LockedConfigError(ConfigError, ValueError):
    """A write to a config after `lock()`."""


class DataError(OfficialLiteError, ValueError):
    """Input that is missing, empty or unreadable."""

    exit_code = ExitCode.DATA


class DivergedError(OfficialLiteError, RuntimeError):
    """A loss that is not finite or out of bounds, without a successful or permitted recovery."""

    exit_code = ExitCode.DIVERGED


class CheckpointError(OfficialLiteError, ValueError):
    """A required checkpoint that is missing or cannot be restored."""

    exit_code = ExitCode.CHECKPOINT


class DiskFullError(CheckpointError, OSError):
    """A file that could not be written because its disk is full. Existing files are intact."""


class OutOfMemoryError(OfficialLiteError, MemoryError):
    """A tensor or array for which there is no memory. Saved checkpoints are intact."""


class ModelDirBusyError(OfficialLiteError, RuntimeError):
    """A model directory in which another run is training."""

    exit_code = ExitCode.BUSY


class ClusterError(OfficialLiteError, RuntimeError):
    """Another process of the cluster that did not start or was lost. This process is intact."""

    exit_code = ExitCode.CLUSTER


class PreemptedError(OfficialLiteError, RuntimeError):
    """A stop requested by a signal. The state is saved, and the same command resumes the run."""

    exit_code = ExitCode.PREEMPTED


class StoppedByUserError(PreemptedError):
    """A stop requested by Ctrl-C, so supervisors must not restart the run automatically."""

    exit_code = ExitCode.INTERRUPTED
