"""The errors that a user can cause, and the exit code that each one ends the process with.

::

    OfficialLiteError
    ├── ConfigError                 what was asked for can't be run                  exit 2
    │   ├── UnknownKeyError         (KeyError)     a name that no config field has
    │   ├── UnknownNameError        (LookupError)  a name that no registry holds
    │   ├── ConfigTypeError         (TypeError)    a value of the wrong type
    │   ├── ConfigValueError        (ValueError)   the right type, but not usable
    │   └── LockedConfigError       (ValueError)   a write after the config was locked
    ├── DataError                   (ValueError)   the input can't be read           exit 3
    ├── DivergedError               (RuntimeError) the numbers blew up               exit 4
    ├── CheckpointError             (ValueError)   no usable checkpoint              exit 5
    ├── ModelDirBusyError           (RuntimeError) another run trains there          exit 6
    └── PreemptedError              (RuntimeError) asked to stop; all is saved       exit 42
        └── StoppedByUserError                     the same, by Ctrl-C               exit 130

Each also is the built-in exception that a reader would expect (in brackets), so that code which
catches `KeyError` or `ValueError` goes on working.
"""

import enum


class ExitCode(enum.IntEnum):
    """What the process tells its caller; one meaning a code."""

    DONE = 0
    FAILED = 1
    CONFIG = 2
    DATA = 3
    DIVERGED = 4
    CHECKPOINT = 5
    BUSY = 6
    CLUSTER = 7
    PREEMPTED = 42
    INTERRUPTED = 130
    TERMINATED = 143


# After these the same command may be started again by a machine. All others are a matter for a
# human, or there is nothing left to do.
RESTARTABLE = frozenset({ExitCode.CLUSTER, ExitCode.PREEMPTED, ExitCode.TERMINATED})


class OfficialLiteError(Exception):
    """Root of the tree. `exit_code` is what `common.app.run` ends the process with."""

    exit_code = ExitCode.FAILED

    # AutoGraph keeps the class of an error of a traced step only if this is its constructor.
    __init__ = Exception.__init__

    def __str__(self) -> str:
        # `KeyError` would show the repr of its argument: quotes around a sentence.
        return str(self.args[0]) if len(self.args) == 1 else super().__str__()


class ConfigError(OfficialLiteError):
    """The request is wrong; nothing was started and nothing was written."""

    exit_code = ExitCode.CONFIG


class UnknownKeyError(ConfigError, KeyError):
    """A key, a field or an attribute that the config does not have."""


class UnknownNameError(ConfigError, LookupError):
    """A name that is in no registry."""


class ConfigTypeError(ConfigError, TypeError):
    """A value whose type the field does not take."""


class ConfigValueError(ConfigError, ValueError):
    """A value of the right type that can't be used."""


class LockedConfigError(ConfigError, ValueError):
    """A write to a config after `lock()`."""


class DataError(OfficialLiteError, ValueError):
    """The input is missing, empty or unreadable."""

    exit_code = ExitCode.DATA


class DivergedError(OfficialLiteError, RuntimeError):
    """The loss is not finite or out of bounds, and recovery was not allowed or did not help."""

    exit_code = ExitCode.DIVERGED


class CheckpointError(OfficialLiteError, ValueError):
    """No checkpoint where one is needed, or none that can be restored."""

    exit_code = ExitCode.CHECKPOINT


class ModelDirBusyError(OfficialLiteError, RuntimeError):
    """Another run is training in the directory."""

    exit_code = ExitCode.BUSY


class ClusterError(OfficialLiteError, RuntimeError):
    """Another process of the cluster did not come, or is gone; this one is sound."""

    exit_code = ExitCode.CLUSTER


class PreemptedError(OfficialLiteError, RuntimeError):
    """The run was asked to stop by a signal. Its state is saved: the same command goes on."""

    exit_code = ExitCode.PREEMPTED


class StoppedByUserError(PreemptedError):
    """The signal was that of Ctrl-C, so nobody should start the run again by himself."""

    exit_code = ExitCode.INTERRUPTED
