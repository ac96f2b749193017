"""The code on documentation pages runs and does what the pages say."""

import importlib
import inspect
import json
import pathlib
import re
import shlex
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from official_lite.config import compatibility
from official_lite.core import config_definitions as cfg
from official_lite.core import file_writers, hook_factory, tf_example_builder
from official_lite.data import position
from tests import commands, rounding


def _page(name: str) -> str:
    return (commands.ROOT / "docs" / f"{name}.md").read_text()


def _blocks(page: str, mark: str = "") -> list[str]:
    """Return all Python blocks of a page, or the blocks below the comment `mark`."""
    start = rf"<!-- {mark} -->\n```\w+" if mark else "```python"
    return re.findall(rf"{start}\n(.*?)```", _page(page), re.DOTALL)


def _python(*args: str, cwd: pathlib.Path) -> str:
    """Run a Python command, and return its standard output."""
    done = commands.run(args, cwd=cwd, env={"PYTHONPATH": str(commands.ROOT)})
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_driver_script_on_the_hooks_page_trains_and_runs_its_hook(tmp_path: pathlib.Path) -> None:
    (tmp_path / "driver.py").write_text(*_blocks("hooks", "driver"))
    printed = _python("driver.py", "run", cwd=tmp_path)
    assert printed.splitlines() == ["iteration 99", "iteration 199"]
    assert (tmp_path / "run" / "ckpt-200.index").exists()


@pytest.mark.slow
def test_plain_loop_script_in_the_docs_trains_the_task_of_an_experiment(
    tmp_path: pathlib.Path,
) -> None:
    printed = _python(str(commands.ROOT / "docs" / "plain_loop.py"), cwd=tmp_path)
    assert float(printed.removeprefix("accuracy ")) > 0.9
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_driver_script_on_the_nas_page_builds_the_model_that_its_search_finds(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "driver.py").write_text(*_blocks("nas", "driver"))
    printed = _python("driver.py", "search", "found", cwd=tmp_path).splitlines()
    lines = [line for line in printed if line.startswith(("found", "layers"))]
    assert lines == ["found {'hidden': 'relu'}", "layers ['InputLayer', 'Dense', 'Dense']"]


def test_hooks_page_lists_every_shipped_hook_with_its_arguments_and_their_defaults() -> None:
    table = _page("hooks").partition("## Shipped hooks")[2].partition("## In the graph")[0]
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", table, re.MULTILINE)
    listed = {name: sorted(re.findall(r"`(.+?)`", arguments)) for name, arguments in rows}
    assert listed == {
        name: sorted(_arguments(spec))
        for name, spec in hook_factory._HOOKS.items()
        if isinstance(spec, str)
    }


def _arguments(spec: str) -> Iterator[str]:
    module, _, name = spec.partition(":")
    for one in inspect.signature(
        getattr(importlib.import_module(module), name)
    ).parameters.values():
        if one.kind is not one.VAR_KEYWORD:
            default = "" if one.default is one.empty else f"={one.default!r}".replace("'", '"')
            yield f"{one.name}{default}"


def _read(build_inputs: Any, batch: int, count: int) -> list[Any]:
    params = cfg.DataConfig(global_batch_size=8, is_training=True, seed=3)
    with position.begin_at(batch=batch, seed=7) as begin:
        dataset = build_inputs(params)
    assert begin.is_kept
    batches = list(dataset.take(count))
    return [np.asarray(each[0] if isinstance(each, tuple) else each) for each in batches]


def test_data_sources_on_the_resume_page_resume_with_the_next_batch() -> None:
    blocks = _blocks("resume")
    assert len(blocks) == 2
    for block in blocks:
        names: dict[str, Any] = {}
        exec(block, names)
        unbroken = _read(names["build_inputs"], 0, 30)
        resumed = _read(names["build_inputs"], 17, 13)
        np.testing.assert_array_equal(resumed, unbroken[17:])


def test_checkpoint_manager_example_on_the_checkpoints_page_saves_and_restores(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = _blocks("checkpoints")
    for number in (1, 2):
        exec(block, {})
        assert capsys.readouterr().out == f"runs/mine/ckpt-{number}\n"


def test_config_changes_documented_as_harmless_do_not_prevent_a_resume() -> None:
    fields = ["trainer.train_epochs", "trainer.writers", "runtime.devices"]
    for path in [*fields, "task.init_checkpoint_strict"]:
        assert compatibility.Change(path=path, old=1, new=2).is_harmless


def _search(mark: str, cwd: pathlib.Path) -> str:
    (block,) = _blocks("search", mark)
    _, script, *args = shlex.split(block.replace("\\\n", " "))
    script = str(commands.ROOT / script) if script == "train.py" else script
    return _python(script, *args, cwd=cwd)


@pytest.mark.slow
def test_study_on_the_search_page_runs_and_can_be_inspected(tmp_path: pathlib.Path) -> None:
    (tmp_path / "search.yaml").write_text(*_blocks("search", "config"))
    _search("command", tmp_path)
    top = json.loads((tmp_path / "study" / "top_k.json").read_text())
    assert top[0]["values"]["accuracy"] > 0.5
    named = re.findall(r"^  ([\w.]+)/? {2,}", _page("search"), re.MULTILINE)
    present = {path.name for path in (tmp_path / "study").iterdir()}
    assert {"search.yaml", "study.journal", "top_k.json"} <= {*named} & present
    _search("again", tmp_path)
    assert (tmp_path / "again" / "ckpt-80.index").exists()
    printed = _search("look", tmp_path)
    assert printed.count("complete") + printed.count("pruned") == 6
    assert (tmp_path / "study" / "plots" / "optimization_history.png").exists()


@pytest.mark.sample(1)
@pytest.mark.parametrize(("index", "printed"), [(0, "30 True\n"), (1, "5\n")])
def test_python_examples_on_the_search_page_run(
    index: int, printed: str, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "script.py").write_text(_blocks("search", "python")[index])
    assert _python("script.py", cwd=tmp_path) == printed


@pytest.fixture(scope="module")
def input_page() -> dict[str, Any]:
    """Return the names that the input page's code defines, with its first dataset as `first`."""
    names: dict[str, Any] = {}
    for block in _blocks("input"):
        exec(block, names)
        names.setdefault("first", names.get("dataset"))
    return names


def test_array_examples_on_the_input_page_yield_the_expected_batches(
    input_page: dict[str, Any],
) -> None:
    assert next(iter(input_page["first"]))["image"].shape == (32, 8, 8)
    batch = next(input_page["dataset"].as_numpy_iterator())
    np.testing.assert_array_equal(batch["square"], batch["x"] ** 2)


def test_reader_on_the_input_page_decodes_tfrecord_files(
    input_page: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    examples = [
        tf_example_builder.TfExampleBuilder()
        .add_ints_feature("label", i)
        .add_floats_feature("dense", [float(i)] * 13)
        .example
        for i in range(10)
    ]
    file_writers.write_small_dataset(examples, str(tmp_path / "records"))
    params = cfg.DataConfig(input_path=f"{tmp_path}/records", global_batch_size=5)
    dense, labels = next(input_page["read"](params).as_numpy_iterator())
    assert labels.tolist() == [0, 1, 2, 3, 4]
    rounding.assert_close(dense[:, 12], np.log1p(labels))
