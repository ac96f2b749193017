"""Tests that `verify` finds each change to a run's files and accepts a run that was only killed."""

import argparse
import dataclasses
import hashlib
import itertools
import json
import math
import os
import pathlib
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tensorflow as tf

from official_lite import pipeline
from official_lite.checkpoint import chain, inspection
from official_lite.common import errors
from official_lite.core import base_task
from official_lite.execution import execution_record
from official_lite.modeling.hyperparams import yaml_io
from official_lite.run import model_dir_lock, run_record
from official_lite.tools import __main__ as tools
from official_lite.tools import sources
from official_lite.tools import verify as verify_tool
from tests import commands
from tests.tools import conftest

PLUGIN = """
import dataclasses
import os
import signal

import keras
import tensorflow as tf

from official_lite import orbit
from official_lite.core import base_task, exp_factory, input_reader, task_factory
from official_lite.core import config_definitions as cfg

SCALE = float(os.environ.get("SCALE", "1"))


class Killer(orbit.Hook):
    every_n_steps = 1

    def after_step(self):
        if self.controller.step == int(os.environ.get("KILL_AT", "-1")):
            os.kill(os.getpid(), signal.SIGKILL)


class Poison(orbit.Hook):
    every_n_steps = 6
    has_acted = False

    def after_step(self):
        if self.controller.step == 6 and not self.has_acted:
            self.has_acted = True
            for variable in self.trainer.model.trainable_variables:
                variable.assign(float("nan") * variable)


class EvalMode(orbit.Hook):
    mode = ""

    def after_eval(self, logs):
        self.mode = self.trainer.eval_execution

    def state_dict(self):
        return {"mode": self.mode}

    def load_state_dict(self, state):
        self.mode = state["mode"]


@dataclasses.dataclass
class Config(cfg.TaskConfig):
    pass


def parse(line):
    x, y = tf.io.decode_csv(line, [0.0, 0.0])
    return tf.stack([x, 1.0]), SCALE * y


@task_factory.register_task_cls(Config)
class Task(base_task.Task):
    def build_model(self):
        layers = [keras.Input((2,)), keras.layers.Dropout(0.1), keras.layers.Dense(1)]
        return keras.Sequential(layers)

    def build_inputs(self, params, input_context=None):
        reader = input_reader.InputReader(params, tf.data.TextLineDataset, parser_fn=parse)
        return reader.read(input_context)

    def validation_step(self, inputs, model, metrics=None):
        if "STOP" in os.environ:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().validation_step(inputs, model, metrics)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return tf.reduce_mean(tf.square(model_outputs[:, 0] - labels))


@exp_factory.register_config_factory("tests/verify")
def experiment():
    data = os.path.join(os.path.dirname(__file__), "data", "part-*.csv")
    return cfg.ExperimentConfig(
        task=Config(
            train_data=cfg.DataConfig(input_path=data, global_batch_size=4, is_training=True),
            validation_data=cfg.DataConfig(
                input_path=data, global_batch_size=4, is_training=False
            ),
        ),
        trainer=cfg.TrainerConfig(
            train_steps=20,
            steps_per_loop=2,
            checkpoint_interval=4,
            validation_interval=10,
            max_to_keep=3,
            writers=["jsonl"],
            hooks=[{"name": f"{os.path.abspath(__file__)}:Killer"}],
            optimizer_config=cfg.OptimizationConfig(
                {
                    "optimizer": {"type": "adam"},
                    "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.1}},
                }
            ),
        ),
        runtime=cfg.RuntimeConfig(distribution_strategy="off"),
    )
"""


@dataclasses.dataclass(frozen=True)
class Trained:
    """A finished run with its code and its data."""

    root: pathlib.Path

    @property
    def run(self) -> pathlib.Path:
        return self.root / "run"

    @property
    def plugin(self) -> pathlib.Path:
        return self.root / "mine.py"

    @property
    def data(self) -> pathlib.Path:
        return self.root / "data" / "part-1.csv"

    @property
    def chain(self) -> pathlib.Path:
        return self.run / "checkpoints.chain.jsonl"

    def file(self, suffix: str, step: int = 16) -> pathlib.Path:
        return self.run / f"ckpt-{step}.{suffix}"

    def train(self, model_dir: str, *flags: str, **environment: str) -> int:
        command = [
            *("-m", "official_lite.tools", "train", "--experiment=tests/verify"),
            *("--mode=train_and_eval", f"--import={self.plugin}", *flags),
            f"--model_dir={self.root / model_dir}",
        ]
        return commands.run(command, env=environment).returncode


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Train a run that is killed twice, and another run, `other`, with the same input files."""
    made = Trained(tmp_path_factory.mktemp("verify"))
    made.plugin.write_text(PLUGIN)
    made.data.parent.mkdir()
    for part in range(2):
        lines = [f"{x},{2 * x + part}\n" for x in range(24)]
        made.data.with_name(f"part-{part}.csv").write_text("".join(lines))
    # Save checkpoints in the foreground, so that the first one is complete before the kill.
    assert made.train("run", "--noenable_async_checkpointing", KILL_AT="6") == -9
    shutil.copytree(made.run, made.root / "killed")
    assert made.train("run", KILL_AT="15") == -9
    assert made.train("run") == 0
    assert made.train("other", "--set=runtime.seed=7") == 0
    return made


@pytest.fixture
def trained(made: Trained) -> Iterator[Trained]:
    """Yield the runs, which a test may change; they are restored afterwards."""
    copy = made.root.with_name(f"{made.root.name}_copy")
    shutil.copytree(made.root, copy)
    yield made
    shutil.rmtree(made.root)
    copy.rename(made.root)


Verify = Callable[..., tuple[int, list[dict[str, Any]]]]


@pytest.fixture
def verify(capsys: pytest.CaptureFixture[str]) -> Verify:
    """Return a function that returns the exit code of `verify --json` and the failed checks."""

    def verify(run: pathlib.Path, *flags: str) -> tuple[int, list[dict[str, Any]]]:
        capsys.readouterr()
        code = tools.main(["verify", str(run), "--json", *flags])
        said = json.loads(capsys.readouterr().out)
        assert said["holds"] == (code == 0)
        return code, [check for check in said["checks"] if check["state"] != "holds"]

    return verify


def _edit(path: pathlib.Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_resumed_run_names_an_input_file_that_has_changed_since_it_last_started(
    trained: Trained,
) -> None:
    log = trained.run / "log.txt"
    assert "Input files have changed" not in log.read_text()
    _edit(trained.data, "3,7", "3,8")
    assert trained.train("run", "--set=trainer.train_steps=24") == 0
    assert f"uninterrupted run. Changed: {trained.data}: sha256" in log.read_text()


def _flip(path: pathlib.Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _edit_lines(path: pathlib.Path, edit: Callable[[list[str]], object]) -> None:
    lines = path.read_text().splitlines(keepends=True)
    edit(lines)
    path.write_text("".join(lines))


def _swap(lines: list[str]) -> None:
    lines[3], lines[4] = lines[4], lines[3]


def _cut_behind_16(lines: list[str]) -> None:
    first = next(i for i, line in enumerate(lines) if '"checkpoint":"ckpt-16"' in line)
    del lines[first:]


def _take_from_other(trained: Trained, *suffixes: str) -> None:
    for suffix in suffixes:
        shutil.copy(trained.root / "other" / f"ckpt-16.{suffix}", trained.run)


def _sign_anew(trained: Trained) -> None:
    """Replace a data file and change its commit file to match, but not the chain."""
    data, commit = trained.file("data-00000-of-00001"), trained.file("commit.json")
    before = hashlib.sha256(data.read_bytes()).hexdigest()
    _flip(data)
    _edit(commit, before, hashlib.sha256(data.read_bytes()).hexdigest())


def _forge_line(trained: Trained) -> None:
    line = {"kind": "checkpoint", "checkpoint": "ckpt-16", "sha256": "0" * 64, "after": "1" * 64}
    with trained.chain.open("a") as file:
        file.write(json.dumps(line) + "\n")


def _install(trained: Trained) -> None:
    """Remove an installed package from `run.json`."""
    record = trained.run / "run.json"
    content = json.loads(record.read_text())
    del content["environment"]["packages"]["absl_py"]
    record.write_text(json.dumps(content))


DATA = "data-00000-of-00001"
COMMIT = "ckpt-16.commit.json"
CHAIN = "checkpoints.chain.jsonl"

# Each kind of tampering, with the link and the file that `verify` must name.
TAMPERINGS: dict[str, tuple[Callable[[Trained], object], str, str]] = {
    "a bit in a data file": (lambda t: _flip(t.file(DATA)), "ckpt-16", f"ckpt-16.{DATA}"),
    "a bit in an index": (lambda t: _flip(t.file("index")), "ckpt-16", "ckpt-16.index"),
    "a data file is cut": (lambda t: os.truncate(t.file(DATA), 99), "ckpt-16", DATA),
    "a data file is removed": (lambda t: t.file(DATA).unlink(), "ckpt-16", DATA),
    "an index is removed": (lambda t: t.file("index").unlink(), "ckpt-16", "ckpt-16.index"),
    "a commit file is removed": (lambda t: t.file("commit.json").unlink(), "ckpt-16", COMMIT),
    "a commit file is edited": (
        lambda t: _edit(t.file("commit.json"), '"num_replicas":1', '"num_replicas":2'),
        "ckpt-16",
        COMMIT,
    ),
    "a data file and its commit file are edited": (_sign_anew, "ckpt-16", COMMIT),
    "a checkpoint of another run": (
        lambda t: _take_from_other(t, DATA, "index", "commit.json"),
        "ckpt-16",
        COMMIT,
    ),
    "the first line is removed": (
        lambda t: _edit_lines(t.chain, lambda lines: lines.pop(0)),
        "chain",
        "line 1",
    ),
    "a line is removed": (
        lambda t: _edit_lines(t.chain, lambda lines: lines.pop(4)),
        "chain",
        "line 5",
    ),
    "the last lines are removed": (
        lambda t: _edit_lines(t.chain, _cut_behind_16),
        "ckpt-16",
        CHAIN,
    ),
    "two lines are swapped": (lambda t: _edit_lines(t.chain, _swap), "chain", "line 4"),
    "a line is edited": (
        lambda t: _edit(t.chain, '"checkpoint":"ckpt-4"', '"checkpoint":"ckpt-5"'),
        "chain",
        CHAIN,
    ),
    "a line is forged": (_forge_line, "chain", CHAIN),
    "a line is garbage": (
        lambda t: t.chain.write_text(t.chain.read_text() + "garbage\n"),
        "chain",
        CHAIN,
    ),
    "the chain is removed": (lambda t: t.chain.unlink(), "ckpt-16", CHAIN),
    "the chain of another run": (
        lambda t: shutil.copy(t.root / "other" / CHAIN, t.chain),
        "ckpt-16",
        COMMIT,
    ),
    "the config is edited": (
        lambda t: _edit(t.run / "params.yaml", "learning_rate: 0.1", "learning_rate: 0.2"),
        "config",
        "params.yaml",
    ),
    "the config is removed": (lambda t: (t.run / "params.yaml").unlink(), "config", "params.yaml"),
    "the command in run.json is edited": (
        lambda t: _edit(t.run / "run.json", "--mode=train_and_eval", "--mode=train"),
        "run.json",
        "run.json",
    ),
    "the packages in run.json are edited": (_install, "run.json", "run.json"),
    "run.json is removed": (lambda t: (t.run / "run.json").unlink(), "run.json", "run.json"),
    "an input file of the same size": (lambda t: _flip(t.data), "inputs", "part-1.csv"),
    "an input file is removed": (lambda t: t.data.unlink(), "inputs", "part-1.csv"),
    "a new input file": (
        lambda t: shutil.copy(t.data, t.data.with_name("part-2.csv")),
        "inputs",
        "part-2.csv",
    ),
    "the code is edited": (lambda t: _edit(t.plugin, "0.1)", "0.2)"), "code", "mine.py"),
    "the code is removed": (lambda t: t.plugin.unlink(), "code", "mine.py"),
}


@pytest.mark.sample(9)
@pytest.mark.parametrize("name", TAMPERINGS)
def test_verify_names_the_checkpoint_chain_entry_and_the_file_that_were_tampered_with(
    name: str, trained: Trained, verify: Verify
) -> None:
    tamper, link, file = TAMPERINGS[name]
    tamper(trained)
    code, broken = verify(trained.run, "--no-replay")
    assert code == 8
    named = [(each["link"], each["file"]) for each in broken if each["state"] == "BROKEN"]
    assert any(each[0] == link and file in each[1] for each in named), named
    assert all(each["recorded"] != each["found"] for each in broken if each["state"] == "BROKEN")


def test_verify_accepts_a_run_that_was_killed_twice(made: Trained, verify: Verify) -> None:
    assert verify(made.run, "--no-replay") == (0, [])


def test_verify_accepts_a_killed_run_whose_last_chain_line_is_incomplete_or_missing(
    trained: Trained, verify: Verify, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = trained.root / "killed"
    assert verify(killed, "--no-replay")[1] == []
    chain = killed / CHAIN
    lines = chain.read_text().splitlines(keepends=True)
    assert '"ckpt-4"' in lines[-1]
    # The run was killed while it wrote the line of the checkpoint, or just before.
    for left in ("".join(lines)[:-9], "".join(lines[:-1])):
        chain.write_text(left)
        assert verify(killed, "--no-replay")[1] == []
    assert trained.train("killed") == 0
    assert verify(killed, "--no-replay") == (0, [])
    assert tools.main(["verify", str(killed), "--no-replay"]) == 0
    assert "holds     ckpt-8        after ckpt-4" in capsys.readouterr().out


@pytest.mark.slow
def test_verify_accepts_a_run_that_resumed_from_the_checkpoint_before_a_damaged_one(
    trained: Trained, verify: Verify, capsys: pytest.CaptureFixture[str]
) -> None:
    # The latest checkpoint is damaged, so the run resumes from the previous one.
    os.truncate(trained.file(DATA, 20), 0)
    assert trained.train("run", "--set=trainer.train_steps=24") == 0
    assert verify(trained.run, "--no-replay") == (0, [])
    assert tools.main(["verify", str(trained.run), "--no-replay"]) == 0
    said = capsys.readouterr().out
    assert "after ckpt-16; forks from the chain, which had reached ckpt-20" in said
    assert "after ckpt-16; removed (damaged)" in said


def test_verify_accepts_and_marks_a_checkpoint_written_by_an_older_version(
    trained: Trained, verify: Verify, capsys: pytest.CaptureFixture[str]
) -> None:
    commit = trained.file("commit.json", 20)
    content = json.loads(commit.read_text())
    del content["chain"], content["sha256"]
    commit.write_text(json.dumps(content))
    assert trained.train("run", "--set=trainer.train_steps=24") == 0
    assert verify(trained.run, "--no-replay") == (0, [])
    assert tools.main(["verify", str(trained.run), "--no-replay"]) == 0
    said = capsys.readouterr().out
    assert "ckpt-20       written by another program or version" in said
    assert "ckpt-24       after ckpt-20" in said
    assert "forks" not in said


@pytest.mark.slow
def test_replay_reproduces_a_run_that_was_preempted_during_an_evaluation(
    trained: Trained, verify: Verify
) -> None:
    assert trained.train("stopped", "--set=runtime.execution=graph", STOP="1") == 42
    assert (trained.root / "stopped" / "ckpt-10.index").exists()
    assert verify(trained.root / "stopped", f"--import={trained.plugin}") == (0, [])


def test_verify_reports_a_package_installed_after_the_run(
    made: Trained,
    verify: Verify,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "rival_package-2.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    code, (broken,) = verify(made.run, "--no-replay")
    assert code == 8
    found = (broken["link"], broken["file"], broken["recorded"], broken["found"])
    assert found == ("environment", "rival_package", "not installed", "2.0")
    assert tools.main(["verify", str(made.run), "--no-replay"]) == 8
    line = "BROKEN    environment   rival_package: recorded not installed, found 2.0\n"
    assert line in capsys.readouterr().out


@pytest.mark.slow
def test_replay_between_two_checkpoints_reproduces_the_recorded_weights(
    made: Trained, verify: Verify, capsys: pytest.CaptureFixture[str]
) -> None:
    flag = f"--import={made.plugin}"
    assert verify(made.run, flag) == (0, [])
    assert tools.main(["verify", str(made.run), flag, "--step=12"]) == 0
    said = capsys.readouterr().out
    assert "holds     replay        from step 12 to 16: equal bit for bit" in said


@pytest.mark.slow
def test_replay_detects_changed_inputs_that_no_checksum_covers(
    made: Trained, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALE", "1.5")
    code, (broken,) = verify(made.run, "--trust")
    assert code == 8
    assert (broken["link"], broken["state"]) == ("replay", "BROKEN")
    assert "kernel" in broken["recorded"]


@pytest.fixture(scope="module")
def hooked(made: Trained) -> pathlib.Path:
    """Train a run that blows up once, at step 6, with hooks that write to other directories."""
    best = {"name": "best_checkpoint", "metric": "validation_loss", "direction": "maximize"}
    entries = [
        {"name": f"{made.plugin}:Poison"},
        best,
        {**best, "directory": str(made.root / "best")},
        {
            "name": "keras_callback",
            "callback": "CSVLogger",
            "filename": str(made.root / "log.csv"),
        },
        {"name": "keras_callback", "callback": "ReduceLROnPlateau", "monitor": "val_loss"},
    ]
    fields = {"train_steps": 16, "max_to_keep": 9, "recovery_max_trials": 1}
    flags = [f"--set=trainer.{name}={value}" for name, value in fields.items()]
    assert made.train("hooked", *flags, f"--set=trainer.hooks={json.dumps(entries)}") == 0
    return made.root / "hooked"


@pytest.mark.slow
def test_replay_accepts_a_run_whose_best_evaluation_precedes_the_replayed_steps(
    hooked: pathlib.Path, verify: Verify
) -> None:
    # The loss falls, so the first evaluation, at step 10, has the largest one.
    assert [path.name for path in (hooked / "best_ckpt").glob("*.index")] == ["best_ckpt-10.index"]
    assert verify(hooked, "--trust", "--step=12") == (0, [])


@pytest.mark.slow
def test_replay_of_steps_with_a_recovery_does_not_count_the_loss_blow_up_twice(
    hooked: pathlib.Path, verify: Verify
) -> None:
    assert len(json.loads((hooked / "recovery.json").read_text())["blow_ups"]) == 1
    assert verify(hooked, "--trust", "--step=4") == (0, [])


@pytest.mark.slow
def test_replay_does_not_change_files_that_hooks_wrote_outside_the_model_directory(
    made: Trained, hooked: pathlib.Path, verify: Verify
) -> None:
    written = [made.root / "log.csv", *sorted((made.root / "best").iterdir())]
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in written]
    assert verify(hooked, "--trust", "--step=8") == (0, [])
    assert [made.root / "log.csv", *sorted((made.root / "best").iterdir())] == written
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in written] == before


@pytest.fixture(scope="module")
def chosen(made: Trained) -> pathlib.Path:
    """Train a run for which `auto` chose XLA, but not for evaluations; `lost` is a killed copy."""
    run = made.root / "chosen"
    run.mkdir()
    seconds = {"graph": 2.0, "xla": 1.0}
    record = execution_record.ExecutionRecord(
        execution="xla", reason="faster", train_steps=20, seconds_per_step=seconds
    )
    execution_record.save(record, str(run))
    hooks = [{"name": f"{made.plugin}:{name}"} for name in ("EvalMode", "Killer")]
    flags = ["--noenable_async_checkpointing", f"--set=trainer.hooks={json.dumps(hooks)}"]
    assert made.train("chosen", *flags, KILL_AT="15") == -9
    shutil.copytree(run, made.root / "lost")
    assert made.train("chosen", *flags) == 0
    return run


@pytest.mark.slow
def test_replay_trains_and_evaluates_in_the_modes_that_auto_chose(
    chosen: pathlib.Path, verify: Verify
) -> None:
    # The config of the finished run names only the mode of training.
    assert "execution: xla\n" in (chosen / "params.yaml").read_text()
    assert verify(chosen, "--trust", "--step=16") == (0, [])


@pytest.mark.slow
def test_steps_are_not_replayed_if_the_record_of_the_mode_that_auto_chose_is_lost(
    made: Trained, chosen: pathlib.Path, verify: Verify, tmp_path: pathlib.Path
) -> None:
    lost = made.root / "lost"
    assert verify(lost, "--trust") == (0, [])
    # The config of the finished run names the mode of training, but not the mode of evaluations.
    finished = pathlib.Path(shutil.copytree(chosen, tmp_path / "finished"))
    for run in (lost, finished):
        (run / "execution.json").unlink()
        code, (unchecked,) = verify(run, "--trust")
        assert (code, unchecked["state"]) == (8, "unchecked")
        assert unchecked["note"].endswith("; pass --set=runtime.execution=xla")


BEST = "official_lite.orbit.hooks:BestCheckpoint"


def test_replay_runs_without_writers_that_the_config_names_by_module_path() -> None:
    plateau = {"name": "official_lite.orbit.hooks:KerasCallback", "callback": "ReduceLROnPlateau"}
    entries = [
        {"name": BEST, "metric": "loss"},
        "mine.py:BestCheckpoint",
        {"name": "best_checkpoint", "metric": "accuracy"},
        plateau,
        {"name": "keras_callback", "callback": "keras.callbacks:CSVLogger", "filename": "/log"},
        "a_name_that_the_user_registers",
    ]
    kept, left_out = verify_tool.leave_out_writers(entries)
    assert kept == [entries[1], plateau, verify_tool._IDLE, entries[-1]]
    assert left_out == {"BestCheckpoint", "BestCheckpoint_1", "KerasCallback_1"}


def test_replay_runs_without_keras_callbacks_that_write_files() -> None:
    writers = ["BackupAndRestore", "CSVLogger", "ModelCheckpoint", "OrbaxCheckpoint"]
    for callback in [*writers, "RemoteMonitor", "TensorBoard"]:
        entries = [{"name": "keras_callback", "callback": callback}]
        assert verify_tool.leave_out_writers(entries)[0] == [verify_tool._IDLE], callback


def test_replay_applies_config_overrides_of_hooks_before_it_removes_those_that_write(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threshold = {"name": "early_stopping", "metric": "loss", "min_delta": 1}
    hooks = [{"name": "best_checkpoint", "metric": "loss"}, threshold]
    config = tmp_path / "params.yaml"
    config.write_text(json.dumps({"trainer": {"hooks": hooks}}))
    commands: list[list[str]] = []

    def train(command: list[str], *_: str) -> None:
        commands.append(command)

    def train_command(_: str, args: argparse.Namespace, *, config: str) -> list[str]:
        return [f"--set={each}" for each in args.set]

    monkeypatch.setattr(sources, "train_command", train_command)
    monkeypatch.setattr(verify_tool, "_train_until", train)
    monkeypatch.setattr(inspection, "find_unequal_bits", lambda *_: [])
    for override, expected in {
        "trainer.hooks[1].min_delta=.inf": [{**threshold, "min_delta": math.inf}],
        "trainer.hooks=[]": [],
    }.items():
        before, after = (str(tmp_path / f"ckpt-{step}") for step in (4, 8))
        args = argparse.Namespace(set=["trainer.train_steps=9", override])
        verify_tool.replay(str(tmp_path), before, after, args, config=str(config))
        first, *rest = [flag for flag in commands.pop() if flag.startswith("--set=trainer.")]
        (of_hooks,) = [flag for flag in rest if flag.startswith("--set=trainer.hooks")]
        assert first == "--set=trainer.train_steps=9"
        assert yaml_io.parse_value(of_hooks.partition("hooks=")[2], "--set") == expected


def test_replay_passes_all_configured_arguments_to_each_hook() -> None:
    values = [math.inf, -math.inf, 1e30, 1e-7, "1e5", "NaN", "012", "😀\n'\"", None, True, [{}]]
    hooks = [{"name": "mine:Hook", "a b": values}]
    assert yaml_io.parse_value(verify_tool._to_flow(hooks), "--set") == hooks


def test_replay_fails_unless_the_user_code_of_the_run_is_imported_again(
    made: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tools.main(["verify", str(made.run)]) == 2
    assert f"If you trust it, pass --import={made.plugin}" in capsys.readouterr().err


def test_error_for_a_step_that_cannot_be_replayed_lists_the_possible_steps(
    made: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tools.main(["verify", str(made.run), f"--import={made.plugin}", "--step=20"]) == 5
    assert "--step can be 12, 16." in capsys.readouterr().err


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Replace the replay, and return the list of the checkpoints and configs that it is given."""
    found: list[tuple[str, ...]] = []

    def replay(
        run_dir: str, before: str, after: str, args: argparse.Namespace, *, config: str
    ) -> list[str]:
        found.append(tuple(os.path.relpath(each, run_dir) for each in (before, after, config)))
        return []

    monkeypatch.setattr(verify_tool, "replay", replay)
    return found


@pytest.fixture
def resumed(
    train_run: Callable[..., str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., pathlib.Path]:
    """Return a function that trains six steps and then two more with other overrides."""

    def resume(*overrides: str) -> pathlib.Path:
        run = pathlib.Path(shutil.copytree(train_run(), tmp_path / f"run{len(overrides)}"))
        sets = [f"--set={each}" for each in ("trainer.train_steps=8", *overrides)]
        params = sources.read_params(str(run), conftest.parse(*sets, source=str(run))).params
        monkeypatch.setattr(sys, "argv", ["train.py", "--experiment=tests/tools", *sets])
        pipeline.RunPipeline(params, "train", str(run), allow_config_change=True).run()
        return run

    return resume


def test_steps_are_replayed_with_the_config_they_ran_with_and_not_replayed_if_that_is_lost(
    resumed: Callable[..., pathlib.Path], verify: Verify, replays: list[tuple[str, ...]]
) -> None:
    # A changed learning rate affects training, so the run keeps the earlier config.
    rate = "trainer.optimizer_config.learning_rate.constant.learning_rate=0.2"
    run = resumed(rate)
    assert verify(run, "--step=4") == verify(run) == (0, [])
    assert replays == [("ckpt-4", "ckpt-6", "params.1.yaml"), ("ckpt-6", "ckpt-8", "params.yaml")]
    # Changed steps do not.
    run = resumed()
    assert verify(run) == (0, [])
    code, (unchecked,) = verify(run, "--step=4")
    assert (code, unchecked["state"]) == (8, "unchecked")
    assert unchecked["note"] == "the config was changed since ckpt-6 was saved"
    assert replays[2:] == [("ckpt-6", "ckpt-8", "params.yaml")]


def test_steps_before_an_out_of_memory_change_of_micro_batches_are_reported_as_not_replayed(
    train_run: Callable[..., str],
    tmp_path: pathlib.Path,
    verify: Verify,
    replays: list[tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original, calls = base_task.Task.train_step, itertools.count(1)

    def allocate() -> None:
        if next(calls) == 5:
            raise MemoryError("OOM when allocating tensor with shape[1000000000]")

    def train_step(*args: Any, **kwargs: Any) -> Any:
        tf.numpy_function(allocate, [], [])
        return original(*args, **kwargs)

    monkeypatch.setattr(base_task.Task, "train_step", train_step)
    sets = ["--set=trainer.fit_memory=true", "--set=runtime.execution=graph"]
    source = train_run()
    params = sources.read_params(source, conftest.parse(*sets, source=source)).params
    run = tmp_path / "run"
    pipeline.RunPipeline(params, "train", str(run)).run()
    assert verify(run) == (0, [])
    code, (unchecked,) = verify(run, "--step=2")
    assert (code, unchecked["state"]) == (8, "unchecked")
    assert unchecked["note"] == "the config was changed since ckpt-4 was saved"
    assert replays == [("ckpt-4", "ckpt-6", "params.yaml")]


def _end_start(run: pathlib.Path, execution: str) -> None:
    """Record the end of a start that chose an execution mode for `auto` after the checkpoints."""
    config = run / "params.yaml"
    _edit(config, "execution: auto", f"execution: {execution}")
    record = [link for link in chain.read(str(run)) if link.kind == "record"][-1]
    checksum = run_record.params_sha256(config.read_text())
    chain.append(str(run), "record", {**record.entries, "params_sha256": checksum})


def test_steps_are_replayed_in_the_execution_mode_that_auto_chose_for_them(
    trained_run: pathlib.Path, verify: Verify, replays: list[tuple[str, ...]]
) -> None:
    _end_start(trained_run, "graph")
    assert verify(trained_run) == (0, [])
    assert replays == [("ckpt-4", "ckpt-6", "params.yaml")]


def _choose_xla(run: pathlib.Path) -> None:
    chosen = execution_record.ExecutionRecord(execution="xla", reason="faster", train_steps=6)
    execution_record.save(chosen, str(run))


def _end_start_with_xla(run: pathlib.Path) -> None:
    _end_start(run, "xla")


@pytest.mark.parametrize("choose", [_choose_xla, _end_start_with_xla], ids=["record", "config"])
def test_steps_are_not_replayed_if_auto_later_chose_another_execution_mode(
    choose: Callable[[pathlib.Path], None],
    trained_run: pathlib.Path,
    verify: Verify,
    replays: list[tuple[str, ...]],
) -> None:
    choose(trained_run)
    code, (unchecked,) = verify(trained_run)
    assert (code, unchecked["state"], replays) == (8, "unchecked", [])
    assert "would not use the execution mode of ckpt-6" in unchecked["note"]
    remedy = unchecked["note"].rpartition("pass ")[2]
    assert verify(trained_run, remedy) == (0, [])
    assert replays == [("ckpt-4", "ckpt-6", "params.yaml")]


@pytest.fixture
def trained_run(train_run: Callable[..., str], tmp_path: pathlib.Path) -> pathlib.Path:
    """Return a copy of a run with checkpoints at the steps 2, 4 and 6."""
    return pathlib.Path(shutil.copytree(train_run(), tmp_path / "run"))


def test_verify_refuses_a_run_that_is_still_training_on_another_host(
    trained_run: pathlib.Path, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = {"id": "other", "host": "elsewhere", "namespace": "", "pid": 1, "process_start": ""}
    beats = itertools.count(1000)

    def beat(seconds: float = 0.0) -> None:
        times = {"start_time": 900, "beat": next(beats)}
        (trained_run / ".lock").write_text(json.dumps({**lock, **times}))

    def replace_sleep(sleep: Callable[[float], None]) -> None:
        defaults: Any = model_dir_lock.ModelDirLock.__init__.__kwdefaults__
        monkeypatch.setitem(defaults, "sleep", sleep)

    beat()
    replace_sleep(lambda seconds: None)
    assert verify(trained_run, "--no-replay") == (0, []), "the holder of the lock is dead"
    replace_sleep(beat)
    assert tools.main(["verify", str(trained_run), "--no-replay"]) == 6


def test_checkpoint_saved_on_preemption_before_an_evaluation_is_not_replayed(
    train_run: Callable[..., str],
    tmp_path: pathlib.Path,
    verify: Verify,
    replays: list[tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = base_task.Task.validation_step

    def stop(task: base_task.Task, *args: Any, **kwargs: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return original(task, *args, **kwargs)

    monkeypatch.setattr(base_task.Task, "validation_step", stop)
    source = train_run()
    for interval, last, expected in ((5, 4, [("ckpt-2", "ckpt-4", "params.yaml")]), (3, 2, [])):
        run = tmp_path / f"run{interval}"
        fields = [f"trainer.validation_interval={interval}", "runtime.execution=graph"]
        sets = [f"--set={each}" for each in fields]
        params = sources.read_params(source, conftest.parse(*sets, source=source)).params
        with pytest.raises(errors.PreemptedError):
            pipeline.RunPipeline(params, "train_and_eval", str(run)).run()
        assert (run / f"ckpt-{interval}.index").exists()
        assert verify(run)[0] == (0 if expected else 8)
        assert replays == expected
        code, (unchecked,) = verify(run, f"--step={last}")
        assert (code, unchecked["state"], replays) == (8, "unchecked", expected)
        assert (
            unchecked["note"] == f"the run was preempted before the evaluation at ckpt-{interval}"
        )
        replays.clear()


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "second"])
def test_replay_needs_a_cluster_only_if_the_config_of_the_replayed_steps_does(
    is_first: bool,
    resumed: Callable[..., pathlib.Path],
    verify: Verify,
    replays: list[tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = "params.1.yaml" if is_first else "params.yaml"
    monkeypatch.setattr(verify_tool, "needs_a_cluster", lambda path: path.endswith(config))
    run = resumed("trainer.optimizer_config.learning_rate.constant.learning_rate=0.2")
    notes = [failed["note"] for step in (4, 6) for failed in verify(run, f"--step={step}")[1]]
    assert notes == ["a run of several processes can't be replayed; pass --no-replay"]
    assert [config for *_, config in replays] == ["params.yaml" if is_first else "params.1.yaml"]


SEGMENTS = [("/run/ckpt-4", "/run/ckpt-8"), ("/run/ckpt-8", "/run/ckpt-12")]


def test_replay_covers_the_steps_before_the_latest_checkpoint_unless_a_step_is_requested() -> None:
    assert [verify_tool.choose(SEGMENTS, step) for step in (None, 4)] == [SEGMENTS[1], SEGMENTS[0]]


def test_only_runs_with_a_multi_process_strategy_need_a_cluster_for_replay(
    tmp_path: pathlib.Path,
) -> None:
    for strategy, expected in (("mirrored", False), ("tpu", True)):
        config = tmp_path / "params.yaml"
        config.write_text(f"runtime: {{distribution_strategy: {strategy}}}\n")
        assert verify_tool.needs_a_cluster(str(config)) == expected
