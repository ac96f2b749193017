import builtins
import errno
import re
import resource
import traceback
import types

import gin
import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import error_report, errors, terminal
from official_lite.modeling import hyperparams

WALL = """in user code:

    File "/project/steps.py", line 71, in None  *
        lambda n: run(n)
    File "/project/steps.py", line 92, in loop_fn  *
        last.keep(step_fn(iterator))

    TypeError: outer_factory.<locals>.inner_factory.<locals>.tf__step() takes 1 argument
"""
GRAPH = """Graph execution error:

Detected at node Reshape defined at (most recent call last):
  File "/lib/threading.py", line 1002, in _bootstrap

  File "/project/mine.py", line 66, in build_losses

Input to reshape is a tensor with 1 values, but the requested shape has 73
\t [[{{node Reshape}}]] [Op:__inference_eval_step_2318]"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("plain\nand more", "plain"),
        ("", ""),
        ("ValueError: is part of it", "ValueError: is part of it"),
        (WALL, "step() takes 1 argument"),
        (GRAPH, "Input to reshape is a tensor with 1 values, but the requested shape has 73"),
        (
            "Exception encountered when calling Dense.call().\n\n\x1b[1mbad shape\x1b[0m",
            "bad shape",
        ),
        ("1 root error(s) found.\n  (0) INVALID_ARGUMENT:  bad index", "bad index"),
        (
            "Dimensions must be equal, but are 4 and 7 for '{{node add}} = AddV2[T=DT_FLOAT](a, b)'"
            " with input shapes: [4,3], [7,5].",
            "Dimensions must be equal, but are 4 and 7 for `AddV2` with input shapes: [4,3], "
            "[7,5].",
        ),
    ],
)
def test_first_line_finds_the_first_informative_line_of_an_error_message(
    text: str, line: str
) -> None:
    assert error_report.first_line(text) == line


def _raised(call, *args):
    with pytest.raises(Exception) as caught:  # noqa: PT011  (tests check the message)
        call(*args)
    return caught.value


def _line_of(function) -> int:
    return function.__code__.co_firstlineno


def _looks_up():
    return {}["a"]


def test_error_summary_names_the_line_of_user_code_that_raised() -> None:
    told = error_report.summary(_raised(_looks_up))
    assert told == f"KeyError: 'a' ({__file__}:{_line_of(_looks_up) + 1}, in `_looks_up`)"


def test_summary_of_an_error_inside_a_library_names_the_users_calling_line() -> None:
    def adds():
        return tf.zeros((2, 3)) + tf.zeros((7, 5))

    for called in (adds, tf.function(adds)):
        told = error_report.summary(_raised(called))
        assert told.endswith(f"({__file__}:{_line_of(adds) + 1}, in `adds`)")


def test_summary_of_an_error_in_an_except_block_names_the_line_in_that_block() -> None:
    def recovers():
        try:
            _looks_up()
        except KeyError:
            tf.reshape(tf.zeros(3), (2,))

    assert error_report.summary(_raised(recovers)).endswith(
        f":{_line_of(recovers) + 4}, in `recovers`)"
    )


def test_summary_of_an_error_in_a_dataset_map_function_names_the_line_in_the_function() -> None:
    def parse(row):
        return row["lable"]

    dataset = tf.data.Dataset.from_tensors({"label": 1})
    told = error_report.summary(_raised(dataset.map, parse))
    assert told == f"KeyError: 'lable' ({__file__}:{_line_of(parse) + 1}, in `parse`)"


def test_summary_of_a_failed_graph_op_names_the_line_that_created_the_op() -> None:
    @tf.function
    def reshapes(row, size):
        return tf.reshape(row, [size, size])

    told = error_report.summary(_raised(reshapes, tf.zeros(3), tf.constant(2)))
    line = _line_of(reshapes.python_function) + 2
    assert told.startswith("InvalidArgumentError: Input to reshape is a tensor with 3 values")
    assert told.endswith(f"({__file__}:{line}, in `reshapes`)")


def test_summary_of_a_call_with_wrong_arguments_names_the_functions_first_line() -> None:
    def build_losses(outputs):
        return outputs

    # The framework calls the function, so no frame of the traceback is the user's.
    autograph = tf.__internal__.autograph
    step = autograph.tf_convert(build_losses, autograph.control_status_ctx())
    code = compile("def run(step):\n    step(logits=1)", error_report.__file__, "exec")
    namespace: dict = {}
    exec(code, namespace)
    told = error_report.summary(_raised(namespace["run"], step))
    assert told == (
        "TypeError: build_losses() got an unexpected keyword argument 'logits' "
        f"({__file__}:{_line_of(build_losses)}, in `build_losses`)"
    )


class Accuracy:
    name = "accuracy"

    def update_state(self):
        raise ValueError("bad shape")


# A module of the framework and a library, neither of which is the user's code.
FRAMEWORK = """
class Task:
    def step(self, *calls):
        return self._update(*calls)

    def _update(self, *calls):
        return calls[0](*calls[1:])

class MyTask(Task): ...
"""


def _as_library(function):
    code = function.__code__.replace(co_filename="/lib/site-packages/metrics.py")
    return types.FunctionType(code, function.__globals__)


@pytest.fixture
def of_framework() -> dict:
    namespace: dict = {"__name__": "framework"}
    exec(compile(FRAMEWORK, error_report.__file__, "exec"), namespace)
    return namespace


@pytest.fixture
def hide_this_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat this file as a part of a library, such as the driver of a run."""
    hidden = re.compile(rf"{error_report._LIBRARY_PARTS.pattern}|{re.escape(__file__)}")
    monkeypatch.setattr(error_report, "_LIBRARY_PARTS", hidden)


def test_error_report_without_user_code_names_the_called_method_and_no_file(
    of_framework: dict, hide_this_file
) -> None:
    update, task = _as_library(Accuracy.update_state), of_framework["MyTask"]()
    told = error_report.report(_raised(task.step, update, Accuracy()), "how")
    assert told.splitlines() == [
        "No line outside of installed packages was running (how).",
        "ValueError: bad shape (while official_lite called `Accuracy.update_state` of `accuracy`)",
    ]
    told = error_report.summary(_raised(task.step, int, "x"))
    assert told.endswith("'x' (while official_lite called `MyTask.step`)")


def test_summary_of_an_error_in_the_users_own_call_names_only_its_line(of_framework: dict) -> None:
    told = error_report.summary(_raised(of_framework["MyTask"]().step, int, "x"))
    assert re.fullmatch(r"ValueError: .* \(\S+:\d+, in `_raised`\)", told)


def test_summary_of_a_syntax_error_names_its_file_and_line(tmp_path) -> None:
    path = tmp_path / "mine.py"
    error = _raised(compile, "a = 1\nb = = 2\n", str(path), "exec")
    assert error_report.summary(error).endswith(f"({path}:2, in `<module>`)")


def test_brief_traceback_has_only_frames_of_the_users_code() -> None:
    @tf.function
    def adds():
        return tf.zeros((2, 3)) + tf.zeros((7, 5))

    brief = error_report.brief_traceback(_raised(adds))
    files = set(re.findall(r'File "([^"]+)"', brief))
    assert files == {__file__}
    assert "return tf.zeros((2, 3)) + tf.zeros((7, 5))" in brief
    assert len(brief) < len("".join(traceback.format_exception(_raised(adds))))


@pytest.mark.parametrize(
    ("shell", "cell"),
    [
        (types.SimpleNamespace(), None),
        (types.SimpleNamespace(compile=types.SimpleNamespace()), None),
        (
            types.SimpleNamespace(
                compile=types.SimpleNamespace(format_code_name=lambda path: ("Cell", "In[3]"))
            ),
            "In[3]",
        ),
    ],
    ids=["another shell", "older IPython", "IPython"],
)
def test_error_without_framework_frames_is_shown_in_every_kind_of_interactive_shell(
    monkeypatch, shell, cell: str | None
) -> None:
    monkeypatch.setattr(builtins, "get_ipython", lambda: shell, raising=False)
    assert terminal.cell_of("/tmp/code.py") == cell
    with pytest.raises(ZeroDivisionError) as caught, error_report.rendered_briefly():
        1 / 0  # noqa: B018  (the failure)
    assert "ZeroDivisionError: division by zero" in caught.value._render_traceback_()[-1]


def test_error_summary_omits_the_text_that_gin_adds_to_the_message() -> None:
    @gin.configurable(module="test_error_report")
    def refuses():
        raise errors.DataError("no such file")

    @gin.configurable(module="test_error_report")
    def calls_it():
        refuses()

    error = _raised(calls_it)
    assert "In call to configurable" in str(error)
    assert error_report.summary(error) == "DataError: no such file"


def test_summary_of_a_framework_error_keeps_its_full_message() -> None:
    assert error_report.summary(errors.DataError("one\ntwo")) == "DataError: one\ntwo"


def test_error_summary_for_a_missing_config_attribute_shows_the_users_line_of_code() -> None:
    def builds():
        return hyperparams.Config({"model": 1}).modle

    told = error_report.summary(_raised(builds))
    assert told.endswith(f"Did you mean `model`? ({__file__}:{_line_of(builds) + 1}, in `builds`)")


def test_config_error_names_the_line_of_the_innermost_factory_only_once() -> None:
    def factory():
        try:
            raise errors.ConfigTypeError("no field")
        except errors.ConfigError as error:
            error_report.name_the_line(error)
            raise

    def outer():
        try:
            factory()
        except errors.ConfigError as error:
            error_report.name_the_line(error)
            raise

    place = f"({__file__}:{_line_of(factory) + 2}, in `factory`)"
    assert str(_raised(outer)) == f"no field {place}"


@pytest.mark.parametrize(
    ("error", "is_full"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EACCES, "Permission denied"), False),
        (tf.errors.ResourceExhaustedError(None, None, "ckpt; No space left on device"), True),
        (tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor"), False),
        (ValueError("space"), False),
    ],
)
def test_is_disk_full_is_true_only_for_errors_caused_by_a_full_disk(
    error: Exception, is_full: bool
) -> None:
    assert error_report.is_disk_full(error) == is_full


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/disk/file"), "full: /disk/file could"),
        (tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor"), "Lower"),
        (np._core._exceptions._ArrayMemoryError((10**9,), np.dtype("f4")), "3.73 GiB"),
        (MemoryError(), "Python could not allocate an object"),
        (RuntimeError("can't start new thread"), "new thread"),
        (ImportError("libx.so: failed to map segment from shared object"), "libx.so"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "Cannot allocate memory"),
    ],
    ids=["disk", "device", "numpy", "python", "thread", "library", "fork"],
)
def test_error_caused_by_an_exhausted_resource_names_the_resource(
    error: Exception, told: str
) -> None:
    is_of_disk = getattr(error, "errno", None) == errno.ENOSPC
    kind = errors.DiskFullError if is_of_disk else errors.OutOfMemoryError
    with pytest.raises(kind, match=told), error_report.naming_the_resource():
        raise RuntimeError("in a library") from error


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch):
    def set_limit(size: int) -> None:
        monkeypatch.setattr(resource, "getrlimit", lambda kind: (size, size))

    return set_limit


def test_unlimited_address_space_logs_no_warning(limit, caplog: pytest.LogCaptureFixture) -> None:
    limit(resource.RLIM_INFINITY)
    error_report.check_limit()
    assert error_report.describe_limit() == ""
    assert not caplog.records


def test_limited_address_space_logs_a_warning(limit, caplog) -> None:
    limit(8_000_000_000)
    error_report.check_limit()
    assert "`ulimit -v` limits the address space of this process to 8.0 GB" in caplog.text
    assert "exit code 127, 134 or 139" in caplog.text


def test_address_space_too_small_for_tensorflow_raises(limit) -> None:
    limit(1_500_000_000)
    with pytest.raises(errors.OutOfMemoryError, match=r"to 1\.5 GB, and TensorFlow needs at least"):
        error_report.check_limit()


def test_available_memory_is_none_or_between_10_mb_and_1_pb() -> None:
    available = error_report.available_memory()
    assert available is None or 10**7 < available < 10**15
