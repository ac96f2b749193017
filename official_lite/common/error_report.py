"""What an error says to the one who caused it: its message, the line of his code, and little else.

TensorFlow tells an error of traced code again and again: as a wall of frames in the message, in
which those of the user may be missing, and by exceptions that are raised in the place of others.
"""

import contextlib
import inspect
import os
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from official_lite.common import errors

__all__ = [
    "brief_traceback",
    "first_line",
    "headline",
    "naming_the_line",
    "shown",
    "summary",
    "unwrapped",
    "user_place",
]

# What gin adds to the message of each error that goes through a function it knows.
_GIN_CALL = "\n  In call to configurable "

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OWN_DRIVER = os.path.join(os.path.dirname(_PACKAGE), "train.py")
_LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})
_LIBRARY_PARTS = re.compile(
    r"[\\/](?:site-packages|dist-packages|tensorflow[\\/]python|keras[\\/]src)[\\/]"
    r"|__autograph_generated_file|^<"
)
_CONVERTED_CALL = re.compile(r"autograph[\\/]impl[\\/]api\.py$")

_FRAME_IN_TEXT = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_WALL = "in user code:"
# A frame and, further to the right, its line of code.
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
    """The error itself, if gin has put another one with more text in its place."""
    while _GIN_CALL in str(error) and error.__context__ is not None:
        error = error.__context__
    return error


def headline(error: BaseException) -> str:
    """The type of an error, and what it says first; all of it, if the message is one of ours."""
    error = unwrapped(error)
    is_ours = isinstance(error, errors.OfficialLiteError)
    name, message = type(error).__name__, str(error) if is_ours else first_line(_text(error))
    if (cause := _traced_cause(error)) is not None:
        name, message = cause
    return f"{name}: {message}" if message else name


def summary(error: BaseException) -> str:
    """The same and, if it is one of code, the line in that of the user it comes from.

    Those of ours are of a config, of data and the like, but for an attribute that is not there.
    """
    told = headline(error)
    if isinstance(error, errors.OfficialLiteError) and not isinstance(error, AttributeError):
        return told
    place = user_place(error) or _own_place(error)
    return told if place is None or shown(place) in told else f"{told} ({shown(place)})"


def first_line(text: str) -> str:
    """The first line of a message that says something, without TensorFlow's frames and nodes."""
    has_wall = _WALL in text
    lines = _WALL_FRAME.sub("", f"{text}\n").splitlines()
    for line in lines:
        line = _NODES.sub("", line.strip())
        if line and not _SAYS_NOTHING.match(line):
            line = _OP_OF_NODE.sub(r"`\1`", _CONVERTED_NAME.sub("", line))
            return _ERROR_NAME.sub("", line) if has_wall else line
    return ""


def user_place(error: BaseException) -> traceback.FrameSummary | None:
    """The innermost line of a user's code, that of no library, which an error has come from.

    If he has called nothing himself, but a function of his can't be called: where it begins.
    """
    told = list(_tellings(error))
    for one in told:
        # Raised by the user himself, whatever came before.
        if (frames := _frames(one)) and _is_of_user(frames[-1]):
            return frames[-1]
    traced = next(filter(_is_of_user, (f for one in reversed(told) for f in _traced(one))), None)
    refused = next(filter(None, map(_refused_function, reversed(told))), None)
    return traced or refused or _innermost(told, _is_of_user)


@contextlib.contextmanager
def naming_the_line() -> Iterator[None]:
    """Adds to the message of a `ConfigError` in which line of the user's code it came up."""
    try:
        yield
    except errors.ConfigError as error:
        place = user_place(error)
        if place is not None and shown(place) not in str(error):
            error.args = (f"{error} ({shown(place)})",)
        raise


def brief_traceback(error: BaseException) -> str:
    """The lines of the user's code, and which of the framework's has called it.

    If there are none, the innermost of the framework's.
    """
    frames: dict[tuple[str, int | None], traceback.FrameSummary] = {}
    for one in _tellings(error):
        for frame in _frames(one):
            if _is_of_user(frame) or _is_own(frame):
                frames.setdefault((frame.filename, frame.lineno), frame)
    kept = list(frames.values())
    first = next((i for i, frame in enumerate(kept) if _is_of_user(frame)), None)
    if first is None:
        kept = [place for place in (_own_place(error), user_place(error)) if place]
    else:
        kept = kept[max(first - 1, 0) : first] + [f for f in kept[first:] if _is_of_user(f)]
    return "".join(traceback.format_list(kept))


def shown(frame: traceback.FrameSummary) -> str:
    """A place as editors find it: `FILE:LINE`, and the function."""
    return f"{frame.filename}:{frame.lineno}, in `{frame.name}`"


def _text(error: BaseException) -> str:
    # Of a sentence, `KeyError` would show the repr.
    if isinstance(error, KeyError) and error.args and " " in str(error.args[0]):
        return str(error.args[0])
    return str(error)


def _traced_cause(error: BaseException) -> tuple[str, str] | None:
    """Name and message of the error in traced code that AutoGraph has told as this one."""
    metadata = getattr(error, "ag_error_metadata", None)
    if metadata is None:
        return None
    name, _, text = str(metadata.cause_message).partition(": ")
    return name, first_line(text)


def _tellings(error: BaseException) -> Iterator[BaseException]:
    """The error, and those before it that it tells again, or that it was raised from."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        before = one.__context__
        is_told_again = before is not None and str(before) and str(before) in str(one)
        one = one.__cause__ or (before if is_told_again else None)


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The outermost first; those of traced code as the user wrote it."""
    frames = [*traceback.extract_tb(error.__traceback__), *reversed(_traced(error))]
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        frames.append(_frame(error.filename, error.lineno, "<module>"))
    if hasattr(error, "node_def"):
        # An op that failed knows only in its message which code has made it.
        for path, line, function in _FRAME_IN_TEXT.findall(str(error)):
            frames.append(_frame(path, int(line), function))
    return frames


def _traced(error: BaseException) -> list[traceback.FrameSummary]:
    """Those of traced code, the innermost first."""
    metadata = getattr(error, "ag_error_metadata", None)
    return [
        _frame(frame.filename, frame.lineno, frame.function_name)
        for frame in (metadata.translated_stack if metadata else ())
    ]


def _frame(path: str, line: int, function: str | None) -> traceback.FrameSummary:
    return traceback.FrameSummary(path, line, function or "<lambda>")


def _innermost(
    told: list[BaseException], belongs: Callable[[traceback.FrameSummary], bool]
) -> traceback.FrameSummary | None:
    for one in reversed(told):
        for frame in reversed(_frames(one)):
            if belongs(frame):
                return frame
    return None


def _own_place(error: BaseException) -> traceback.FrameSummary | None:
    return _innermost(list(_tellings(error)), _is_own)


def _refused_function(error: BaseException) -> traceback.FrameSummary | None:
    """The function of a user that AutoGraph was to call with arguments it does not take."""
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
    is_library = _LIBRARY_PARTS.search(path) or path.startswith(_LIBRARIES)
    return not (is_library or _is_own(frame) or os.path.abspath(path) == _OWN_DRIVER)
