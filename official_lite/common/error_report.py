"""Formatting of errors for users: the message, the line of their own code, and memory limits.

TensorFlow reports an error in traced code several times: as a list of frames in the message, which
may lack the user's frames, and as an exception that replaces the original one.
"""

import contextlib
import errno
import functools
import inspect
import itertools
import os
import pathlib
import re
import resource
import sysconfig
import traceback
from collections.abc import Iterator
from typing import Any

from absl import logging

from official_lite.common import errors, terminal

# Matches messages from TensorFlow, SQLite and HDF5 about a full disk.
_NO_SPACE = re.compile(
    r"No space left on device|database or disk is full|Disk quota exceeded|"
    r"There is not enough space on the disk"
)
_NO_MEMORY = re.compile(r"\bOOM when allocating|out of memory\b", re.IGNORECASE)
# Matches messages from Python and the dynamic linker about memory that can't be mapped for a stack
# or a library.
_NO_ROOM_TO_MAP = re.compile(
    r"can't start new thread|failed to map segment|[Cc]annot allocate memory"
)
_TO_SAVE_MEMORY = "Lower `global_batch_size`, `shuffle_buffer_size` or the size of the model"

# Text that gin adds to the message of each error that passes through a configurable function.
_GIN_CALL = "\n  In call to configurable "

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OWN_DRIVER = os.path.join(os.path.dirname(_PACKAGE), "train.py")
_LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})
_LIBRARY_PARTS = re.compile(
    r"[\\/](?:site-packages|dist-packages|tensorflow[\\/]python|keras[\\/]src)[\\/]"
    r"|__autograph_generated_file|^<"
)
_CONVERTED_CALL = re.compile(r"autograph[\\/]impl[\\/]api\.py$")

# Matches the modules that run the training. If a line of the user's code leads to a frame in one of
# them, the line has only started a run.
_RUN = re.compile(r"[\\/](?:run[\\/]driver|orbit[\\/]controller|core[\\/]base_trainer)\.py$")

_FRAME_IN_TEXT = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_WALL = "in user code:"
# Matches a frame and the line of code after it, which is indented further.
_WALL_FRAME = re.compile(r'^( *)File ".*\n(?:\1 +\S.*\n)?', re.MULTILINE)
_SAYS_NOTHING = re.compile(
    r"in user code:|Graph execution error:|Detected at node|<stack traces|"
    r"\d+ root error|Exception encountered when calling|Traceback \(most recent"
)
_NODES = re.compile(r"\{\{function_node .*?\}\} ?|^\(\d+\) [A-Z_]+: +|\x1b\[[\d;]*m")
_OP_OF_NODE = re.compile(r"'\{\{node [^}]*\}\} = (\w+)[^']*'")
_ERROR_NAME = re.compile(r"^([\w.]*(?:Error|Exception|Interrupt|Exit|Warning)): ")
_CONVERTED_NAME = re.compile(r"(?:\w+\.<locals>\.)*inner_factory\.<locals>\.tf__")


def unwrapped(error: BaseException) -> BaseException:
    """Return the original error if gin has replaced it to extend the message; else `error`."""
    while _GIN_CALL in str(error) and error.__context__ is not None:
        error = error.__context__
    return error


def headline(error: BaseException) -> str:
    """Return the type and first line of an error; the whole message for an `OfficialLiteError`."""
    error = unwrapped(error)
    is_ours = isinstance(error, errors.OfficialLiteError) and not _SAYS_NOTHING.match(str(error))
    name, message = type(error).__name__, str(error) if is_ours else first_line(_text(error))
    if (cause := _traced_cause(error)) is not None:
        name, message = cause
    return f"{name}: {message}" if message else name


def summary(error: BaseException) -> str:
    """Return the headline and, for errors in code, the line of the user's code that caused it.

    If no such line was executed, add the failed call of the framework instead. For an
    `OfficialLiteError`, return only the headline, because its message names the config or data that
    caused it. An `AttributeError` of this class is an error in code.
    """
    told = headline(error)
    if isinstance(error, errors.OfficialLiteError) and not isinstance(error, AttributeError):
        return told
    place = user_place(error)
    parts = [shown(place) if place else "", _failed_call(error, in_run=place is not None)]
    where = ", ".join(part for part in parts if part and part not in told)
    return f"{told} ({where})" if where else told


def first_line(text: str) -> str:
    """Return the first informative line of a message, without TensorFlow's frames and nodes."""
    has_wall = _WALL in text
    lines = _WALL_FRAME.sub("", f"{text}\n").splitlines()
    for line in lines:
        line = _NODES.sub("", line.strip())
        if line and not _SAYS_NOTHING.match(line):
            line = _OP_OF_NODE.sub(r"`\1`", _CONVERTED_NAME.sub("", line))
            return _ERROR_NAME.sub("", line) if has_wall else line
    return ""


def user_place(error: BaseException) -> traceback.FrameSummary | None:
    """Return the innermost line of the user's code, outside any library, that caused an error.

    If no such line was executed, but a function of the user could not be called, return the place
    where that function starts.
    """
    told = list(_tellings(error))
    for one in told:
        # The user's code raised this error itself, so earlier errors do not matter.
        if (frames := _frames(one)) and _is_of_user(frames[-1]):
            return frames[-1]
    traced = next(filter(_is_of_user, (f for one in reversed(told) for f in _traced(one))), None)
    refused = next(filter(None, map(_refused_function, reversed(told))), None)
    others = (frame for one in reversed(told) for frame in reversed(_frames(one)))
    return traced or refused or next(filter(_is_of_user, others), None)


def _failed_call(error: BaseException, *, in_run: bool) -> str:
    """Describe the call by the framework that failed; return "" if there is none.

    This is the first call into a library, such as `BinaryAccuracy.update_state`. If there is no
    such call, it is the method of the innermost object in the framework's frames, such as
    `ToyTask.validation_step`.

    If `in_run` is true, return "" unless the call happened within a run. The user's line on the
    stack is then the one that started the run, so it doesn't explain the error.
    """
    for one in reversed(list(_tellings(error))):
        all_calls = _calls(one)
        calls = list(itertools.takewhile(lambda call: not _is_written_by_user(call), all_calls))
        own = [index for index, (frame, _) in enumerate(calls) if _is_own(frame)]
        if any(map(_is_of_user, _traced(one))) or (not own and len(calls) < len(all_calls)):
            return ""  # The user's code itself failed.
        if not own or (in_run and not any(_RUN.search(frame.filename) for frame, _ in calls)):
            continue
        if own[0] > 0 and (called := calls[own[0] - 1])[1] is not None:
            # Look up the name without evaluating a property, because a user's property may raise an
            # error. If `name` is a property, as in Keras, the attribute `_name` holds its value.
            names = (inspect.getattr_static(called[1], key, None) for key in ("name", "_name"))
            of = next((f" of `{name}`" for name in names if isinstance(name, str)), "")
            return f"while official_lite called `{_method(*called)}`{of}"
        methods = [calls[index] for index in own if calls[index][1] is not None]
        # If several methods of the innermost object are nested, name the outermost one, which users
        # are most likely to recognize.
        nested = [call for call in methods if call[1] is methods[0][1]]
        return f"while official_lite called `{_method(*[calls[own[0]], *nested][-1])}`"
    return ""


# A frame, and the object whose method it runs. The object is None if it is unknown or if the frame
# does not run a method.
_Call = tuple[traceback.FrameSummary, Any]


def _calls(error: BaseException) -> list[_Call]:
    """Return the calls on the stack of an error, the innermost first."""
    # If an op of a graph fails, only the error message shows which code created the op.
    if hasattr(error, "node_def") and (created := _frames_in_text(error)):
        return [(frame, None) for frame in reversed(created)]
    calls = [
        (_frame(f.f_code.co_filename, line, f.f_code.co_name), f.f_locals.get("self"))
        for f, line in traceback.walk_tb(error.__traceback__)
    ]
    return calls[::-1]


def _method(frame: traceback.FrameSummary, owner: Any) -> str:
    return frame.name if owner is None else f"{type(owner).__name__}.{frame.name}"


def _is_written_by_user(call: _Call) -> bool:
    return _is_of_user(call[0]) or "__autograph_generated_file" in call[0].filename


def raising_function(error: BaseException) -> str:
    """Return the name of the function that raised an error; in traced code, its original name."""
    return _frames(error)[-1].name


def place_in_text(error: BaseException) -> str:
    """Return " (PLACE)" for the innermost line of the user's code in a message; else ""."""
    frames = _frames_in_text(error)[::-1]
    # Fall back to other frames outside TensorFlow, because the user's code may be part of an
    # installed package.
    others = (
        f for f in frames if not _is_own(f) and f"{os.sep}tensorflow{os.sep}" not in f.filename
    )
    place = next(filter(_is_of_user, frames), None) or next(others, None)
    return f" ({shown(place)})" if place else ""


def name_the_line(error: errors.ConfigError) -> None:
    """Append the line of the user's code that caused an error to its message."""
    place = user_place(error)
    if place is not None and shown(place) not in str(error):
        error.args = (f"{error} ({shown(place)})",)


def is_disk_full(error: BaseException) -> bool:
    """Return whether an operation failed with this error because the disk is full."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    # Check the message, too, because TensorFlow also raises a `ResourceExhaustedError` if a device
    # has no memory left.
    is_of_library = type(error).__name__ in ("ResourceExhaustedError", "OperationalError")
    return is_of_library and _NO_SPACE.search(str(error)) is not None


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an operation failed with this error because there is no memory left."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno == errno.ENOMEM
    if isinstance(error, (RuntimeError, ImportError)) and _NO_ROOM_TO_MAP.search(str(error)):
        return True
    is_of_library = type(error).__name__ in ("ResourceExhaustedError", "XlaRuntimeError")
    return isinstance(error, MemoryError) or (
        is_of_library and _NO_MEMORY.search(str(error)) is not None
    )


@contextlib.contextmanager
def naming_the_resource(*, to_save_memory: str = _TO_SAVE_MEMORY) -> Iterator[None]:
    """Turn the errors that libraries raise about a full disk or memory into errors with a remedy.

    Args:
        to_save_memory: What users can do if there is no memory, as the start of a sentence.

    Raises:
        errors.DiskFullError: The disk is full.
        errors.OutOfMemoryError: There is no memory for a tensor or array.
    """
    try:
        yield
    except (errors.DiskFullError, errors.PreemptedError):
        raise
    except Exception as error:
        told = list(_tellings(error))
        if full := next(filter(is_disk_full, told), None):
            path = getattr(full, "filename", None)
            what = f"{path} could not be written" if path else first_line(str(full))
            raise errors.DiskFullError(
                f"The disk is full: {what}. Existing files are unchanged. Free some space and "
                "start the same command again."
            ) from error
        is_ours = isinstance(error, errors.OfficialLiteError)
        if not is_ours and (needy := next(filter(is_out_of_memory, told), None)):
            place = user_place(error)
            said = first_line(str(unwrapped(needy))) or "Python could not allocate an object"
            what = said + (f" ({shown(place)})" if place else "")
            limit = describe_limit()
            raise errors.OutOfMemoryError(
                f"The memory is exhausted: {what}. Saved checkpoints are intact. {to_save_memory}, "
                f"then start the same command again.{limit and f' {limit}.'}"
            ) from error
        raise


def brief_traceback(error: BaseException) -> str:
    """Return the lines of the user's code and the line of the framework that called it."""
    frames: dict[tuple[str, int | None], traceback.FrameSummary] = {}
    for one in _tellings(error):
        for frame in _frames(one):
            if _is_of_user(frame) or _is_own(frame):
                frames.setdefault((frame.filename, frame.lineno), frame)
    kept = list(frames.values())
    first = next((i for i, frame in enumerate(kept) if _is_of_user(frame)), len(kept))
    of_user = [frame for frame in kept[first:] if _is_of_user(frame)]
    if not of_user:
        # No line of the user's code was executed, so show the user's function that could not be
        # called, if there is one.
        return "".join(_formatted(place) for place in [user_place(error)] if place)
    return "".join(map(_formatted, kept[max(first - 1, 0) : first] + of_user))


def report(error: BaseException, how_to_see_all: str) -> str:
    """Return the lines of the user's code, then the error and the line that caused it."""
    told = [f"No line outside of installed packages was running ({how_to_see_all})."]
    if lines := brief_traceback(error).rstrip("\n"):
        told = [f"Traceback of your own code, most recent call last ({how_to_see_all}):", lines]
    notes = [note for one in _tellings(error) for note in getattr(one, "__notes__", ())]
    return "\n".join([*told, *dict.fromkeys(notes), summary(error)])


@contextlib.contextmanager
def rendered_briefly() -> Iterator[None]:
    """Make a notebook show only the user's own lines of an error that leaves this context.

    The error itself does not change, so `except` works as usual.
    """
    try:
        yield
    except Exception as error:
        if terminal.ipython_shell() is not None:
            # IPython calls this method to format the exception.
            vars(error)["_render_traceback_"] = functools.partial(_render, error)
        raise


def _render(error: BaseException) -> list[str]:
    """Return the lines that a notebook shows for an error."""
    formatter: Any = getattr(terminal.ipython_shell(), "InteractiveTB", None)
    if getattr(formatter, "mode", None) == "Verbose":
        told = unwrapped(error)
        return list(formatter.structured_traceback(type(told), told, error.__traceback__))
    return report(error, "`%xmode Verbose`, then `%tb`, shows everything").splitlines()


# Set the method here, because `errors` can't import this module, which imports `errors`.
errors.OfficialLiteError._render_traceback_ = _render


def shown(frame: traceback.FrameSummary) -> str:
    """Format a place as `FILE:LINE`, which editors recognize, and the function.

    A place in a notebook is a line of a cell.
    """
    if cell := terminal.cell_of(frame.filename):
        return f"cell {cell}, line {frame.lineno}"
    return f"{frame.filename}:{frame.lineno}, in `{frame.name}`"


def _text(error: BaseException) -> str:
    # `str` of a `KeyError` shows the repr of its argument, which would put a sentence in quotes.
    if isinstance(error, KeyError) and error.args and " " in str(error.args[0]):
        return str(error.args[0])
    return str(error)


def _traced_cause(error: BaseException) -> tuple[str, str] | None:
    """Return the name and message of the error in traced code that AutoGraph re-raised as `error`.

    Return None if AutoGraph did not raise `error`.
    """
    metadata = getattr(error, "ag_error_metadata", None)
    if metadata is None:
        return None
    name, _, text = str(metadata.cause_message).partition(": ")
    return name, first_line(text)


def _tellings(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, starting with the error itself.

    The cause of an error is the `error` in `raise … from error`. Otherwise, it is the error that
    was being handled, provided that the new message contains the message of that error.
    """
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        before = one.__context__
        is_told_again = before is not None and str(before) and str(before) in str(one)
        one = one.__cause__ or (before if is_told_again else None)


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return an error's frames, outermost first; traced code is mapped to the user's source."""
    frames = [*traceback.extract_tb(error.__traceback__), *reversed(_traced(error))]
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        frames.append(_frame(error.filename, error.lineno, "<module>"))
    if hasattr(error, "node_def"):
        # If an op of a graph fails, only the error message shows which code created the op.
        frames += _frames_in_text(error)
    return frames


def _frames_in_text(error: BaseException) -> list[traceback.FrameSummary]:
    found = _FRAME_IN_TEXT.findall(str(error))
    return [_frame(path, int(line), function) for path, line, function in found]


def _traced(error: BaseException) -> list[traceback.FrameSummary]:
    """Return an error's frames in traced code, innermost first."""
    metadata = getattr(error, "ag_error_metadata", None)
    return [
        _frame(frame.filename, frame.lineno, frame.function_name)
        for frame in (metadata.translated_stack if metadata else ())
    ]


def _frame(path: str, line: int, function: str | None) -> traceback.FrameSummary:
    return traceback.FrameSummary(path, line, function or "<lambda>")


def _formatted(frame: traceback.FrameSummary) -> str:
    (text,) = traceback.format_list([frame])
    cell = terminal.cell_of(frame.filename)
    if cell is None:
        return text
    return text.replace(f'File "{frame.filename}"', f"Cell {cell}", 1).replace(
        ", in <module>\n", "\n", 1
    )


def _refused_function(error: BaseException) -> traceback.FrameSummary | None:
    """Return the first line of a user's function that AutoGraph called with invalid arguments.

    Return None if no such call caused the error.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or not _CONVERTED_CALL.search(trace.tb_frame.f_code.co_filename):
        return None
    called: Any = trace.tb_frame.f_locals.get("f")
    code = getattr(inspect.unwrap(getattr(called, "__func__", called)), "__code__", None)
    if code is None:
        return None
    place = _frame(code.co_filename, code.co_firstlineno, code.co_name)
    return place if _is_of_user(place) else None


def _is_own(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(_PACKAGE + os.sep)


def _is_of_user(frame: traceback.FrameSummary) -> bool:
    path = frame.filename
    if terminal.cell_of(path):
        return True
    is_library = _LIBRARY_PARTS.search(path) or path.startswith(_LIBRARIES)
    return not (is_library or _is_own(frame) or os.path.abspath(path) == _OWN_DRIVER)


# TensorFlow, Keras and their libraries alone map 1.7 GB. With less address space, some libraries
# fail to load and others wait forever for memory.
_MIN_ADDRESS_SPACE = 2_000_000_000


def check_limit() -> None:
    """Raise an error if `ulimit -v` is too low for TensorFlow, and warn about any other limit.

    When the limit is reached, native code ends the process instead of raising an error, so the
    cause can only be reported beforehand.

    Raises:
        errors.OutOfMemoryError: TensorFlow can't start within the limit.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return
    if limit < _MIN_ADDRESS_SPACE:
        raise errors.OutOfMemoryError(
            f"The memory is too small: {describe_limit()}, and TensorFlow needs at least "
            f"{_MIN_ADDRESS_SPACE / 1e9:.0f} GB to start. Raise the limit or remove it with "
            "`ulimit -v unlimited`."
        )
    logging.warning(
        "%s. TensorFlow reserves more address space than it uses. If the limit is reached, the "
        "process may crash with exit code 127, 134 or 139 instead of raising an error. To limit "
        "the memory, use a control group (systemd, Docker, Slurm) rather than `ulimit -v`.",
        describe_limit(),
    )


def describe_limit() -> str:
    """Return a clause that says how large the address space may become, or an empty string."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return ""
    return f"`ulimit -v` limits the address space of this process to {limit / 1e9:.1f} GB"


def available_memory() -> int | None:
    """Return the available memory of this machine or container in bytes; None if unknown."""
    try:
        lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    sizes = dict(line.split(":", 1) for line in lines)
    if "MemAvailable" not in sizes:
        return None
    available = int(sizes["MemAvailable"].split()[0]) * 1024
    # The files in which a container finds its memory limit and its current memory usage.
    limit, used = (_read_number(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
    return available if limit is None or used is None else min(available, limit - used)


def _read_number(path: str) -> int | None:
    try:
        return int(pathlib.Path(path).read_text())
    except (OSError, ValueError):
        return None
