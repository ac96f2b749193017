"""Untrusted input runs no code, leaves no directory and sends no commands to a terminal.

The faults are listed in docs/reliability.md; docs/security.md says which input is trusted.
"""

import ast
import inspect
import json
import logging as python_logging
import pathlib
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import registry_imports  # noqa: F401  (imported for its registrations)
from official_lite import orbit, pipeline, search, telemetry
from official_lite.checkpoint import committed_checkpoint_manager, inspection, warm_start
from official_lite.common import errors, plugins
from official_lite.config import gin_config, parsing
from official_lite.core import (
    config_definitions as cfg,
)
from official_lite.core import (
    exp_factory,
    export_base,
    hook_factory,
    writer_factory,
)
from official_lite.data import file_reading
from official_lite.modeling import model_export
from official_lite.modeling.hyperparams import yaml_io
from official_lite.orbit.hooks import keras_callback
from official_lite.run import run_record
from official_lite.search import storage, worker
from official_lite.tools import __main__ as tools
from tests import commands, row_files

ROOT = pathlib.Path(__file__).parents[2]
DIGITS = "vision/digits_mlp"


def _parse(**options: Any) -> Any:
    flags = parsing.ParseConfigOptions(experiment=DIGITS, **options)
    return parsing.parse_configuration(flags, print_return=False)


@pytest.fixture
def mark(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return the path of the file that untrusted code creates when it runs."""
    return tmp_path / "code_has_run"


@pytest.fixture
def plugin(tmp_path: pathlib.Path, mark: pathlib.Path) -> pathlib.Path:
    file = tmp_path / "plugin.py"
    file.write_text(
        "import pathlib\n"
        f"pathlib.Path({str(mark)!r}).touch()\n"
        "from official_lite import orbit\n\n\n"
        "class Plugin(orbit.Hook):\n    pass\n"
    )
    return file


@pytest.mark.parametrize(
    "value",
    [
        "!!python/object/apply:os.system ['touch {mark}']",
        "!!python/name:os.system",
        "!custom {{a: 1}}",
    ],
)
def test_yaml_tags_that_run_code_or_are_unknown_are_refused(mark: pathlib.Path, value: str) -> None:
    with pytest.raises(errors.ConfigError, match=r"the tag .* is not allowed"):
        yaml_io.parse_yaml(f"a: {value.format(mark=mark)}\n", "my.yaml")
    assert not mark.exists()


@pytest.mark.parametrize(
    "line", ["import plugin", "include 'other.gin'", "x = @os.system()", "x = @plugin"]
)
def test_safe_config_refuses_gin_files_that_run_code(
    tmp_path: pathlib.Path,
    plugin: pathlib.Path,
    mark: pathlib.Path,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "other.gin").write_text("import plugin\n")
    file = tmp_path / "evil.gin"
    file.write_text(line + "\n")
    with pytest.raises(errors.ConfigError, match="--safe_config"):
        gin_config.parse_gin([str(file)], [], safe=True)
    assert not mark.exists()


@pytest.mark.parametrize(
    "assignment",
    [
        "trainer.hooks=['{plugin}:Plugin']",
        "trainer.hooks=['{plugin}']",
        "trainer.hooks=[{{name: lambda, after_step: 'os:abort'}}]",
        "trainer.writers=['plugin:Writer']",
        "trainer.name='plugin:Trainer'",
        "pipeline.prepare='{plugin}:Stage'",
        "phases=[{{name: a, overrides: {{trainer.hooks: ['{plugin}']}}}}]",
        "search={{space: {{trainer.hooks: [['{plugin}']]}}, metric: a, direction: max}}",
    ],
)
def test_safe_config_refuses_config_values_that_refer_to_python_code(
    plugin: pathlib.Path, mark: pathlib.Path, assignment: str
) -> None:
    with pytest.raises(errors.ConfigError, match="can run code, and --safe_config was given"):
        _parse(set=[assignment.format(plugin=plugin)], safe_config=True)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("workspace", "hook"),
    [("{directory}/plugin.p", "{{workspace}}y"), ("{directory}", "{{workspace}}/plugin.py")],
)
@pytest.mark.parametrize(
    "assignment",
    ["trainer.hooks=['{}']", "phases=[{{name: a, overrides: {{trainer.name: '{}'}}}}]"],
)
def test_safe_config_checks_values_after_replacing_the_workspace_placeholder(
    plugin: pathlib.Path, mark: pathlib.Path, workspace: str, hook: str, assignment: str
) -> None:
    given = [f"workspace={workspace.format(directory=plugin.parent)}"]
    with pytest.raises(errors.ConfigError, match=r"plugin\.py' can run code, and --safe_config"):
        _parse(set=[*given, assignment.format(hook.format())], safe_config=True)
    assert not mark.exists()


@exp_factory.register_config_factory("tests/with_code")
def _with_code() -> cfg.ExperimentConfig:
    hooks = ["{workspace}/plugin.py", "plugin.py:Plugin", {"name": "profiler", "directory": "/own"}]
    return cfg.ExperimentConfig(workspace="/registered", trainer=cfg.TrainerConfig(hooks=hooks))


def test_safe_config_refuses_to_load_registered_code_from_another_workspace(
    plugin: pathlib.Path, mark: pathlib.Path
) -> None:
    moved = parsing.ParseConfigOptions(
        experiment="tests/with_code", set=[f"workspace={plugin.parent}"], safe_config=True
    )
    with pytest.raises(errors.ConfigError, match="can run code"):
        parsing.parse_configuration(moved, print_return=False)
    assert not mark.exists()


def test_safe_config_accepts_registered_hooks_and_a_tf_data_service_address() -> None:
    assignments = ["trainer.hooks=[input_wait]", "task.train_data.tf_data_service_address='h:80'"]
    assert _parse(set=assignments, safe_config=True).trainer.hooks == ["input_wait"]
    assert len(hook_factory.find_hooks(["input_wait", {"name": "profiler", "directory": "p"}])) == 2


OUTSIDE = ["/outside", "../outside", "~/outside", "gs://bucket/outside", "a/../../outside"]


@pytest.mark.parametrize(
    "entry",
    [
        *({"name": "best_checkpoint", "metric": "loss", "directory": path} for path in OUTSIDE),
        {"name": "export_model", "subdir": "/outside"},
        {"name": "profiler", "directory": "../outside"},
        {"name": "keras_callback", "callback": "EarlyStopping", "monitor": "~/outside"},
        {"name": "action", "action": {"name": "a:B", "path": ["/outside"]}},
    ],
)
def test_safe_config_refuses_hook_paths_outside_the_model_directory(entry: dict[str, Any]) -> None:
    _parse(safe_config=True)
    with pytest.raises(errors.ConfigError, match="is outside the model directory"):
        hook_factory.find_hooks([entry])


def test_safe_config_accepts_only_keras_callbacks_that_write_no_files() -> None:
    _parse(safe_config=True)
    for callback in sorted(keras_callback.keras_callbacks()):
        arguments = {*inspect.signature(getattr(keras.callbacks, callback)).parameters}
        touches = {"filename", "filepath", "directory", "backup_dir", "log_dir", "root"} & arguments
        entry = {"name": "keras_callback", "callback": callback}
        if callback in ("EarlyStopping", "ReduceLROnPlateau", "SwapEMAWeights", "TerminateOnNaN"):
            assert not touches
            hook_factory.find_hooks([entry])
        else:
            with pytest.raises(errors.ConfigError, match="Allowed callbacks: EarlyStopping"):
                hook_factory.find_hooks([{**entry, **dict.fromkeys(touches, "within")}])


def test_safe_config_refuses_a_callback_that_would_delete_a_directory(
    tmp_path: pathlib.Path,
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    hook = f"{{name: keras_callback, callback: BackupAndRestore, backup_dir: {precious}}}"
    sets = [f"trainer.hooks=[{hook}]", "trainer.train_steps=2", "task.train_data.num_examples=64"]
    params = _parse(set=sets, safe_config=True)
    with pytest.raises(errors.ConfigError, match="--safe_config was given"):
        pipeline.RunPipeline(params, "train", str(tmp_path / "run")).run()
    assert (precious / "file").exists()


def test_safe_config_refuses_unsafe_writer_study_storage_and_tfds_settings(
    tmp_path: pathlib.Path,
) -> None:
    _parse(safe_config=True)
    with pytest.raises(errors.ConfigError, match="`tracking_uri` is 'folder'"):
        writer_factory.find_writers([{"name": "mlflow", "tracking_uri": "folder"}])
    config = search.SearchConfig({"direction": "max", "storage": f"sqlite:///{tmp_path}/other.db"})
    with pytest.raises(errors.ConfigError, match=r"`search.storage` is sqlite"):
        storage.create_study(config, str(tmp_path / "study"), origin={})
    options: Any = None
    with pytest.raises(errors.ConfigError, match="has a namespace"):
        file_reading.read_tfds("huggingface:mnist/plain", "train", options)
    with pytest.raises(errors.ConfigError, match="`tfds_data_dir` is 'here'"):
        file_reading.read_tfds("mnist:3.0.1", "train", options, data_dir="here")
    assert not list(tmp_path.rglob("other.db"))


def test_safe_config_accepts_absolute_paths_set_by_the_registered_experiment() -> None:
    options = parsing.ParseConfigOptions(experiment="tests/with_code", safe_config=True)
    with pytest.raises(errors.ConfigError, match=r"'plugin.py:Plugin' can run code"):
        parsing.parse_configuration(options, print_return=False)
    hooks = ["'{workspace}/plugin.py'", "{name: profiler, directory: /own}"]
    options.set = [f"trainer.hooks=[{', '.join(hooks)}]"]
    params = parsing.parse_configuration(options, print_return=False)
    assert params.trainer.hooks[0] == "/registered/plugin.py"
    hook_factory.find_hooks([params.trainer.hooks[1].as_dict()])
    with pytest.raises(errors.ConfigError, match="is outside"):
        hook_factory.find_hooks([{"name": "export_model", "subdir": "/own"}])


@pytest.mark.slow
def test_safe_config_applies_in_search_worker_processes(
    tmp_path: pathlib.Path, plugin: pathlib.Path, mark: pathlib.Path
) -> None:
    _parse(safe_config=True)
    process = worker.start_process(
        hook_factory.find_hooks, [str(plugin)], output_path=str(tmp_path / "output")
    )
    process.join()
    assert process.exitcode == 2
    assert "can run code, and --safe_config was given" in (tmp_path / "output").read_text()
    assert not mark.exists()


@pytest.mark.parametrize("binding", ["Trainer.directory = '/x'", "a/b.c = 1"])
def test_safe_config_accepts_gin_bindings_of_config_fields_only(binding: str) -> None:
    with pytest.raises(errors.ConfigError, match="--safe_config was given"):
        gin_config.parse_gin([], [binding], safe=True)
    gin_config.parse_gin([], ["steps = 7", "trainer/params.train_steps = %steps"], safe=True)
    assert _parse(safe_config=True).trainer.train_steps == 7


@pytest.mark.parametrize("setting", ["runtime.worker_hosts=10.0.0.1:1", "runtime.tpu=foreign"])
def test_safe_config_refuses_worker_hosts_and_tpu_names_in_config_overrides(setting: str) -> None:
    with pytest.raises(errors.ConfigValueError, match="names machines"):
        _parse(safe_config=True, set=[setting])
    _parse(set=[setting])
    assert _parse(safe_config=True, tpu="mine").runtime.tpu == "mine"


def test_safe_config_refuses_an_xla_cache_directory(tmp_path: pathlib.Path) -> None:
    setting = f"runtime.xla_cache_dir={tmp_path}"
    with pytest.raises(errors.ConfigValueError, match="a directory of programs"):
        _parse(safe_config=True, set=[setting])
    assert _parse(set=[setting]).runtime.xla_cache_dir == str(tmp_path)
    phase = f"phases=[{{name: first, overrides: {{runtime.xla_cache_dir: {tmp_path}}}}}]"
    params = _parse(safe_config=True, set=[phase])
    with pytest.raises(errors.ConfigValueError, match="a directory of programs"):
        pipeline.RunPipeline(params, "train", str(tmp_path / "run"))


@pytest.mark.parametrize("directory", OUTSIDE)
def test_safe_config_refuses_to_predict_into_a_directory_outside_the_model_directory(
    directory: str, tmp_path: pathlib.Path
) -> None:
    run, outside, file = (tmp_path / name for name in ("run", "outside", "config.yaml"))
    file.write_text(f"prediction: {{output_dir: '{directory}'}}\n")
    params = _parse(safe_config=True, config_file=[str(file)])
    with pytest.raises(errors.ConfigError, match="is outside the model directory"):
        pipeline.RunPipeline(params, "predict", str(run)).run()
    assert not outside.exists()
    # The user's own command line may name any directory.
    setting = f"prediction.output_dir={outside}"
    params = _parse(safe_config=True, config_file=[str(file)], set=[setting])
    assert run_record.predictions_dir(params, str(run)) == str(outside)


def test_safe_config_refuses_to_write_a_schema_outside_the_model_directory(
    tmp_path: pathlib.Path,
) -> None:
    written = tmp_path / "schema.json"
    data = {
        "source": "parquet",
        "input_path": str(row_files.write("parquet", tmp_path / "data")),
        "schema": str(written),
        "global_batch_size": 8,
    }
    params = _parse(safe_config=True).replace(task={"train_data": data})
    with pytest.raises(errors.ConfigError, match="would be written outside the model directory"):
        pipeline.RunPipeline(params, "train", str(tmp_path / "run")).run()
    assert not written.exists()


def test_train_command_with_safe_config_rejects_configs_that_run_code(
    plugin: pathlib.Path, mark: pathlib.Path
) -> None:
    model_dir = plugin.parent / "run"
    command = [sys.executable, str(ROOT / "train.py"), f"--experiment={DIGITS}", "--mode=train"]
    command += [f"--model_dir={model_dir}", f"--set=trainer.hooks=['{plugin}']", "--safe_config"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert result.returncode == 2
    assert "--safe_config" in result.stderr
    assert not mark.exists()
    assert not model_dir.exists()


@pytest.fixture
def hostile(plugin: pathlib.Path) -> pathlib.Path:
    """Create a run and a study whose files name code in every field that can name code."""
    folder = plugin.parent / "hostile"
    folder.mkdir()
    for name in ("run", "study"):
        (folder / name).mkdir()
    argv = ["train.py", f"--experiment={DIGITS}", f"--import={plugin}", f"--gin_file={plugin}"]
    (folder / "run" / "run.json").write_text(json.dumps({"argv": argv, "status": "done"}))
    params = {"trainer": {"name": f"{plugin}:Plugin", "hooks": [str(plugin)]}}
    params["pipeline"] = dict.fromkeys(["prepare", "build", "run"], str(plugin))
    (folder / "run" / "params.yaml").write_text(yaml_io.to_yaml(params))
    saved = tf.train.CheckpointManager(tf.train.Checkpoint(), str(folder / "run"), max_to_keep=2)
    for step in (1, 2):
        saved.save(step)
    space = {"task.model.units": [[1], [2]]}
    config = search.SearchConfig({"direction": "max", "metric": "accuracy", "space": space})
    storage.create_study(config, str(folder / "study"), origin={})
    config.override({name: str(plugin) for name in ("pruner", "strategy", "evaluator")})
    (folder / "study" / storage.CONFIG_FILE).write_text(yaml_io.to_yaml(config.as_dict()))
    return folder


@pytest.mark.parametrize(
    "command",
    [
        "report {run} {study} --output={run}/page.html",
        "search {study}",
        "runs list {run}/..",
        "runs compare {run} {run}",
        "config show {run}",
        "config diff {run} vision/digits_mlp",
        "config diff {run}/params.yaml vision/digits_mlp",
        "checkpoints list {run}",
        "completion bash",
    ],
)
def test_inspecting_a_hostile_run_executes_none_of_its_code(
    hostile: pathlib.Path, mark: pathlib.Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command.format(run=hostile / "run", study=hostile / "study").split()
    assert tools.main(words) == 0, capsys.readouterr().err
    assert not mark.exists()


@pytest.mark.parametrize("command", ["export", "average", "tune lr", "tune batch_size"])
def test_tools_that_build_the_model_refuse_code_not_named_on_the_command_line(
    hostile: pathlib.Path, mark: pathlib.Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = hostile / "run"
    assert tools.main([*command.split(), str(run)]) == 2
    assert f"pass --import={hostile.parent}/plugin.py --gin_file=" in capsys.readouterr().err
    (run / "run.json").write_text(json.dumps({"argv": ["train.py", f"--experiment={DIGITS}"]}))
    assert tools.main([*command.split(), str(run)]) == 2
    assert f"can run code, and {run}/params.yaml is not trusted" in capsys.readouterr().err
    assert not mark.exists()


def test_inspecting_a_study_opens_its_database_only_if_the_storage_flag_names_it(
    hostile: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = hostile / "someone_elses.db"
    file = hostile / "study" / storage.CONFIG_FILE
    url = f"sqlite:///{database}"
    file.write_text(file.read_text().replace("storage: ''", f"storage: {url}"))
    commands = [["search"], ["report", f"--output={hostile}/page.html"]]
    for command in commands:
        assert tools.main([*command, str(hostile / "study")]) == 2
        assert f"pass --storage={url}" in capsys.readouterr().err
        assert not database.exists()
    config = search.SearchConfig({"direction": "max", "storage": url})
    storage.create_study(config, str(hostile / "study"), origin={})
    for command in commands:
        assert tools.main([*command, str(hostile / "study"), f"--storage={url}"]) == 0


@pytest.fixture
def lambda_file(tmp_path: pathlib.Path, mark: pathlib.Path) -> pathlib.Path:
    """Save a model whose `Lambda` layer would create the `mark` file."""
    path = str(mark)
    # The function must be a lambda, because Keras saves only the name of a named function.
    leave_mark = keras.layers.Lambda(lambda x: (open(path, "w").close(), x)[1])
    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.layers.Dense(1)(leave_mark(inputs)))
    file = tmp_path / "model.keras"
    model.save(file)
    mark.unlink()
    return file


@pytest.mark.filterwarnings("ignore:__array__ implementation")
def test_keras_file_is_refused_as_a_checkpoint_without_being_opened(
    lambda_file: pathlib.Path, mark: pathlib.Path
) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with pytest.raises(errors.CheckpointError) as caught:
        warm_start.load_weights(model, str(lambda_file))
    assert caught.value.exit_code == 5
    assert not mark.exists()


@pytest.mark.filterwarnings("ignore:__array__ implementation")
def test_keras_load_model_refuses_to_run_code_in_a_model_file(
    lambda_file: pathlib.Path, mark: pathlib.Path
) -> None:
    with pytest.raises(ValueError, match=r"unsafe|disallowed"):
        keras.models.load_model(lambda_file)
    assert not mark.exists()


def test_init_checkpoint_loads_the_model_weights_of_a_full_training_checkpoint(
    tmp_path: pathlib.Path,
) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    step, other = tf.Variable(7), tf.Variable([1.0])
    saved = tf.train.Checkpoint(model=model, global_step=step, optimizer=other)
    prefix = saved.save(str(tmp_path / "ckpt"))
    fresh = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    warm_start.load_weights(fresh, prefix)
    np.testing.assert_array_equal(fresh.layers[0].kernel, model.layers[0].kernel)


# Modules that unpack archives or run code that they read, and names of unsafe functions.
_FORBIDDEN_MODULES = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve", "tarfile"}
_FORBIDDEN_MODULES |= {"zipfile"}
_FORBIDDEN_NAMES = {
    "enable_unsafe_deserialization",
    "load_model",
    "unpack_archive",
    "unsafe_load",
}


def _uses(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "safe_mode"):
            is_safe = isinstance(node.value, ast.Constant) and node.value.value is (
                node.arg == "safe_mode"
            )
            yield "" if is_safe else f"{node.arg} that is not safe"


# `tools export` loads only a model that it has just written.
_OF_OWN_FILES = {"checked_export.py: load_model"}


def test_package_source_code_uses_no_pickle_and_extracts_no_archives() -> None:
    sources = [*(ROOT / "official_lite").rglob("*.py"), ROOT / "train.py"]
    forbidden = _FORBIDDEN_MODULES | _FORBIDDEN_NAMES
    found = {
        f"{path.name}: {use}"
        for path in sources
        for use in _uses(ast.parse(path.read_text()))
        if use in forbidden or use.endswith("not safe")
    }
    assert len(sources) > 100
    assert found == _OF_OWN_FILES


@pytest.mark.parametrize("name", ["weights.pkl", "archive.zip"])
def test_pickle_and_zip_files_are_refused_as_checkpoints_without_being_unpacked(
    tmp_path: pathlib.Path, name: str
) -> None:
    with zipfile.ZipFile(tmp_path / name, "w") as archive:
        archive.writestr("../../escaped", "x")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with pytest.raises(errors.CheckpointError):
        warm_start.load_weights(model, str(tmp_path / name))
    assert not list(tmp_path.parent.rglob("escaped"))


BAD_NAMES = ["../out", "a/../../out", "/tmp/out", "a\0b", "a\nb", "\x1b[2Jx"]


@pytest.mark.parametrize(
    ("field", "name"),
    [
        *(("best_checkpoint_export_subdir", name) for name in BAD_NAMES),
        ("validation_summary_subdir", "../out"),
    ],
)
def test_subdirectory_outside_the_model_directory_is_refused(field: str, name: str) -> None:
    params = exp_factory.get_exp_config(DIGITS)
    params.override({"trainer": {field: name}})
    with pytest.raises(errors.ConfigError, match=f"`{field}` must be the name of a subdir"):
        params.validate()


@pytest.mark.parametrize("name", BAD_NAMES)
def test_unsafe_registered_names_and_phase_names_are_refused(name: str) -> None:
    with pytest.raises(errors.ConfigError):
        plugins.register({}, name)(object)
    params = exp_factory.get_exp_config(DIGITS)
    params.override({"phases": [{"name": name}]})
    with pytest.raises(errors.ConfigError):
        params.validate()


@pytest.mark.parametrize("name", ["../out", "a\0b"])
def test_export_hook_subdir_outside_the_model_directory_raises(
    tmp_path: pathlib.Path, name: str
) -> None:
    class Controller:
        model_dir = str(tmp_path / "run")

    hook = orbit.hooks.ExportModel(subdir=name)
    hook.controller = Controller()  # The hook uses only the attribute `model_dir`.
    hook.trainer = type("Trainer", (), {"model": keras.Sequential()})()
    with pytest.raises(errors.ConfigError, match="must be the name of a subdirectory"):
        hook.before_train()
    assert not list(tmp_path.iterdir())


def _save(directory: str) -> None:
    checkpoint = tf.train.Checkpoint(step=tf.Variable(1))
    manager = committed_checkpoint_manager.CommittedCheckpointManager(checkpoint, directory, 1)
    manager.save(1)


def _export(directory: str) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model_export.write_model(model, f"{directory}/ckpt-7_temp", "tf_saved_model")


@pytest.mark.filterwarnings("ignore:__array__ implementation")
@pytest.mark.parametrize("act", [_save, _export, inspection.remove_ckpts])
def test_removing_a_symlink_in_a_run_keeps_its_target(
    tmp_path: pathlib.Path, act: Callable[[str], None]
) -> None:
    precious, run = tmp_path / "precious", tmp_path / "run"
    for directory in (precious, run):
        directory.mkdir()
    (precious / "file").touch()
    link = run / "ckpt-7_temp"
    link.symlink_to(precious)
    act(str(run))
    assert not link.is_symlink()
    assert (precious / "file").exists()


def test_only_one_module_removes_directories_recursively_except_for_temporary_ones() -> None:
    package = ROOT / "official_lite"
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if "rmtree" in path.read_text()
    }
    # These modules remove only the temporary directories of this package.
    temporary = {"checkpoint/directories.py", "data/file_reading.py"}
    assert found == {"common/files.py", *temporary}


@pytest.mark.parametrize("name", ["a\nb", ""])
def test_unsafe_serving_signature_name_is_refused(tmp_path: pathlib.Path, name: str) -> None:
    with pytest.raises(errors.ConfigError):
        export_base.export(None, {"serve": name}, str(tmp_path))


EVIL = "\x1b]0;title\x07\x1b[31mloss\r\u202e"


def test_control_characters_in_metric_names_are_escaped_on_the_terminal(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    record = telemetry.Record(step=1, split=EVIL, values={EVIL: 1.0})
    with caplog.at_level(python_logging.INFO, logger="absl"):
        telemetry.ConsoleWriter().write(record)
    telemetry.summary_table({EVIL: EVIL}, title=EVIL)
    shown = caplog.text + capsys.readouterr().err
    assert r"\x1b[31mloss\r" in shown
    assert not set(shown) & set("\x1b\x07\r\u202e")


def test_control_characters_in_errors_and_logs_are_escaped_on_the_terminal(
    tmp_path: pathlib.Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from absl import logging\n"
        "from official_lite.common import app, errors\n"
        "def main(argv):\n"
        f"    logging.warning('%s', {EVIL!r})\n"
        f"    raise errors.DataError({EVIL!r})\n"
        "app.run(main)\n"
    )
    command = [sys.executable, str(script)]
    # The output is read as bytes, because text mode would convert the carriage returns.
    result = subprocess.run(command, capture_output=True, check=False)
    assert result.returncode == 3
    assert result.stderr.count(rb"\x1b[31mloss\r") == 2
    assert b"\x1b" not in result.stderr
    assert b"\r" not in result.stderr


@pytest.mark.slow
def test_url_passwords_are_masked_in_all_files_of_a_run(tmp_path: pathlib.Path) -> None:
    setting = "task.train_data.trainer_id=http://me:secret@host"
    command = ["train.py", f"--experiment={DIGITS}", "--mode=train", f"--model_dir={tmp_path}"]
    command += ["--set=runtime.execution=graph"]
    for steps in (2, 4):  # The second run resumes with the same password.
        done = commands.run([*command, f"--set={setting}", f"--set=trainer.train_steps={steps}"])
        assert done.returncode == 0, done.stderr[-2000:]
    found = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"http://me:***@host" in content for content in found)
    assert not any(b"secret" in content for content in found)
    done = commands.run([*command, f"--config_file={tmp_path / 'params.yaml'}"])
    assert done.returncode == errors.ExitCode.CONFIG
    assert "--set=task.train_data.trainer_id=" in done.stderr.splitlines()[-1]
