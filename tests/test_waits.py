"""Tests wait for a condition instead of a fixed time, and long enough for a busy machine."""

import ast
import pathlib
from collections.abc import Iterator

TESTS = pathlib.Path(__file__).parent
# The shortest timeout that a test may have, in seconds.
LEAST = 300
# A sleep of at least this many seconds is allowed, because the process only waits to be killed.
FOR_GOOD = 300
# Exceptions by file, or by file and function, with the reason why a busy machine does no harm.
EXCEPTIONS = {
    "waiting.py::wait_for": "the pause between two checks of the condition",
    "orbit/hooks/test_iteration_timer.py::after_step": "the lower bound of a measured time",
    "orbit/hooks/test_input_wait.py::sleep": "a time that is measured relative to other steps",
    "hosts.py::cut": "the length of an outage, not of a wait",
    "search/toys.py::slow": "leaves time for a kill, for which the test waits separately",
    "end_to_end/test_data_faults.py::_hanging": "outlasts a warning that comes after 0.2 seconds",
    "end_to_end/test_storage_faults.py::"
    "test_kills_during_saves_leave_at_most_one_extra_checkpoint_on_disk": (
        "kills at several moments of a save, none of which is awaited"
    ),
    "end_to_end/test_signals.py::between_two_requests": (
        "signals of the first half second count as one; more time does no harm"
    ),
    "tools/test_launch.py::send": "the same reason as for `between_two_requests`",
    "tools/test_launch.py::test_processes_that_notice_a_failure_may_exit_within_the_grace_period": (
        "the launcher checks every few milliseconds and should find one process first"
    ),
    "telemetry/test_async_writer.py::test_async_write_blocks_while_the_queue_is_full": (
        "nothing should happen in this time"
    ),
    "orbit/test_checkpoint_watcher.py": "the clock is a fake",
    "core/test_savedmodel_checkpoint_manager.py::test_iterator_yields_saved_models_in_step_order": (
        "starts again with each model; both are there from the start"
    ),
}


def _files() -> list[pathlib.Path]:
    others = {pathlib.Path(__file__), *(TESTS / "ports").glob("*/**/*.py")}
    return [path for path in sorted(TESTS.rglob("*.py")) if path not in others]


def _number(node: ast.AST | None) -> float | None:
    is_number = isinstance(node, ast.Constant) and type(node.value) in (int, float)
    return float(node.value) if is_number else None


def _is_short(node: ast.AST | None) -> bool:
    # A timeout of 0 does not wait at all.
    number = _number(node)
    return number is not None and 0 < number < LEAST


def _clock(node: ast.AST) -> bool:
    """Return whether a node is a call of a clock."""
    name = _called(node)
    return name in ("monotonic", "perf_counter") or ast.unparse(node) in ("time.time()", "time()")


def _called(node: ast.AST) -> str:
    """Return the name of the called function, without its module; empty for anything else."""
    func = node.func if isinstance(node, ast.Call) else None
    return getattr(func, "attr", "") or getattr(func, "id", "")


def _problem(node: ast.AST) -> str:
    match node:
        case ast.Call(args=[seconds]) if _called(node) == "sleep":
            if (_number(seconds) or 0) < FOR_GOOD:
                return "sleeps; use `waiting.wait_for`"
        case ast.Call(func=ast.Attribute(attr="wait" | "join"), args=[seconds]):
            if _is_short(seconds):
                return "waits too briefly"
        case ast.keyword(arg="timeout" | "grace_secs", value=seconds):
            if _is_short(seconds):
                return "gives up too early"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            if _clock(left) and _is_short(right):
                return "has a deadline that is too early"
        case ast.Compare(left=ast.BinOp(left=left, op=ast.Sub()), ops=[ast.Lt() | ast.LtE()]):
            if _clock(left) and _is_short(node.comparators[0]):
                return "expects to be fast"
    return ""


def _code_in(node: ast.AST) -> ast.AST | None:
    """Return the parsed program in a string if the program sleeps, or None."""
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "_" for part in node.values]
        text = "".join(map(str, parts))
    else:
        text = node.value if isinstance(node, ast.Constant) else ""
    if not isinstance(text, str) or "sleep(" not in text:
        return None
    try:
        return ast.parse(text)
    except SyntaxError:
        return None


def _problems(node: ast.AST, function: str = "", is_program: bool = False) -> Iterator[str]:
    """Yield the problems in a node, each with the name of the function and the line.

    A program in a string may wait in a loop, because the test that starts it has a timeout.
    """
    if isinstance(node, ast.FunctionDef):
        function = node.name
    if is_program and isinstance(node, ast.While):
        return
    if problem := _problem(node):
        yield f"{function}, line {node.lineno}: {ast.unparse(node)} {problem}"
    if code := _code_in(node):
        for problem in _problems(code, function, is_program=True):
            yield f"{problem} (in the text of line {node.lineno})"
        return
    for child in ast.iter_child_nodes(node):
        yield from _problems(child, function, is_program)


def _found() -> dict[str, list[str]]:
    """Return the problems by file and function."""
    found: dict[str, list[str]] = {}
    for path in _files():
        for problem in _problems(ast.parse(path.read_text())):
            file = str(path.relative_to(TESTS))
            key = file if file in EXCEPTIONS else f"{file}::{problem.partition(',')[0]}"
            found.setdefault(key, []).append(problem)
    return found


def test_tests_wait_for_conditions_with_long_timeouts() -> None:
    found = _found()
    assert {key: found[key] for key in found if key not in EXCEPTIONS} == {}
    assert [key for key in EXCEPTIONS if key not in found] == [], "these exceptions are unused"


def test_fixed_sleeps_and_short_timeouts_are_detected_and_other_waits_are_not() -> None:
    waits = [
        "time.sleep(3)",
        "from time import sleep\nsleep(3)",
        "await asyncio.sleep(3)",
        "while not done():\n    time.sleep(0.1)",
        "run('import time; time.sleep(60)')",
        "run(f'wait({x})\\ntime.sleep(5)')",
        "deadline = time.monotonic() + 30",
        "deadline = monotonic() + 30",
        "assert time.monotonic() - began < 5",
        "subprocess.run(command, timeout=60)",
        "process.wait(10)",
    ]
    others = [
        "deadline = time.monotonic() + 300",
        "assert time.monotonic() - began >= 0.2",
        "controller.evaluate_continuously(timeout=0)",
        "run('while not done(): time.sleep(0.1)')",
        "time.sleep(300)",
        "', '.join(names)",
    ]
    found = [code for code in [*waits, *others] if list(_problems(ast.parse(code)))]
    assert found == waits
