import pathlib

import pytest

from official_lite import pipeline
from official_lite.common import errors
from official_lite.pipeline import stages

STAGE = """
from official_lite import pipeline

class {name}(pipeline.{base}):
    mark = {mark!r}
"""


def _write(path: pathlib.Path, *stages: tuple[str, str], mark: str = "") -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(STAGE.format(name=n, base=b, mark=mark) for n, b in stages))


@pytest.fixture
def find(experiment, tmp_path):
    """The stages of a config with one stage named."""
    return lambda stage, spec: stages.find_stages(
        experiment(pipeline={stage: spec}, workspace=str(tmp_path))
    )


def test_unnamed_stages_are_the_default_ones(find, tmp_path) -> None:
    _write(tmp_path / "mine.py", ("Mine", "Initialize"))
    stages = find("initialize", "{workspace}/mine.py")
    assert tuple(stages) == pipeline.STAGES
    assert stages.pop("initialize").__name__ == "Mine"
    assert list(stages.values()) == [
        pipeline.Prepare,
        pipeline.Build,
        pipeline.Run,
        pipeline.Finalize,
    ]


def test_registered_name_will_do(find) -> None:
    @pipeline.register_stage("tests/quiet")
    class Quiet(pipeline.Finalize):
        pass

    assert find("finalize", "tests/quiet")["finalize"] is Quiet
    with pytest.raises(errors.UnknownNameError, match="`tests/quiet`"):
        find("finalize", "tests/quite")


def test_two_classes_in_a_file_need_a_name(find, tmp_path) -> None:
    _write(tmp_path / "two.py", ("First", "Run"), ("Second", "Run"), ("Other", "Build"))
    with pytest.raises(errors.ConfigValueError, match="`First` and `Second`"):
        find("run", "{workspace}/two.py")
    assert find("run", "{workspace}/two.py:Second")["run"].__name__ == "Second"


def test_wrong_class_is_an_error_with_file_and_name(find, tmp_path) -> None:
    _write(tmp_path / "build.py", ("Mine", "Build"))
    with pytest.raises(errors.ConfigTypeError, match=r"build\.py:Mine.*Run"):
        find("run", "{workspace}/build.py:Mine")
    with pytest.raises(errors.UnknownNameError, match=r"build\.py:Mien.*`Mine`"):
        find("build", "{workspace}/build.py:Mien")
    with pytest.raises(errors.UnknownNameError, match=r"biuld\.py"):
        find("build", "{workspace}/biuld.py")


def test_function_is_no_stage(find, tmp_path) -> None:
    (tmp_path / "function.py").write_text("def run(ctx): ...")
    with pytest.raises(errors.ConfigTypeError, match="subclass of `Run`"):
        find("run", "{workspace}/function.py:run")


def test_files_of_one_name_do_not_collide(find, tmp_path) -> None:
    _write(tmp_path / "a" / "mine.py", ("Mine", "Run"), mark="a")
    _write(tmp_path / "b" / "mine.py", ("Mine", "Run"), mark="b")
    marks = [find("run", f"{{workspace}}/{d}/mine.py")["run"].mark for d in "ab"]
    assert marks == ["a", "b"]


def test_error_inside_a_file_comes_through_with_its_own_traceback(find, tmp_path) -> None:
    (tmp_path / "broken.py").write_text("import no_such_package")
    with pytest.raises(ModuleNotFoundError, match="no_such_package") as caught:
        find("run", "{workspace}/broken.py")
    assert str(caught.traceback[-1].path).endswith("broken.py")


def test_argument_comes_before_the_config_and_unknown_ones_fail(experiment) -> None:
    class Mine(pipeline.Run):
        pass

    params = experiment(pipeline={"run": "nowhere.py"})
    assert stages.find_stages(params, {"run": Mine})["run"] is Mine
    with pytest.raises(errors.UnknownNameError, match="`run`"):
        stages.find_stages(params, {"rum": Mine})


def test_class_that_was_typed_in_is_described_without_a_file() -> None:
    typed = type("Typed", (pipeline.Run,), {"__module__": "__main__"})
    assert stages.describe("run", typed).startswith("stage run: Typed (")
    nowhere = type("Typed", (pipeline.Run,), {"__module__": "nowhere"})
    assert stages.describe("run", nowhere) == "stage run: Typed (nowhere)"
