import dataclasses
import json
import pathlib
from typing import Any

import pytest
import yaml

from official_lite.checkpoint import chain
from official_lite.common import errors
from official_lite.config import compatibility, epochs, parsing
from official_lite.core import config_definitions as cfg
from official_lite.modeling.multitask import configs as multitask_configs
from official_lite.run import run_record


def _params(**overrides: Any) -> cfg.ExperimentConfig:
    params = cfg.ExperimentConfig()
    params.override(overrides)
    return params


@pytest.fixture
def model_dir(tmp_path: pathlib.Path) -> str:
    """Return the directory of a 3-step run whose execution `auto` was resolved to `xla`."""
    with run_record.RunRecord(_params(trainer={"train_steps": 3}), "train", str(tmp_path)) as run:
        run.replace_params(_params(trainer={"train_steps": 3}, runtime={"execution": "xla"}))
    (tmp_path / "ckpt-3.index").touch()
    return str(tmp_path)


def test_resolving_execution_auto_to_a_mode_is_not_a_config_change(model_dir: str) -> None:
    params = _params(trainer={"train_steps": 3})
    assert compatibility.check(params, model_dir) == []
    params.override({"runtime": {"execution": "xla"}})
    assert compatibility.check(params, model_dir) == []


@pytest.mark.parametrize(
    "overrides",
    [
        {"trainer": {"train_steps": 50}},
        {"trainer": {"checkpoint_interval": 7, "validation_interval": 9, "log_interval": 1}},
        {"trainer": {"hooks": ["stall_warning"], "writers": ["console"], "max_to_keep": 9}},
        {"trainer": {"best_checkpoint_export_subdir": "b", "best_checkpoint_eval_metric": "m"}},
        {"runtime": {"num_gpus": 2, "distribution_strategy": "off", "execution": "graph"}},
        {"task": {"validation_data": {"input_path": "elsewhere"}, "init_checkpoint": "x"}},
        {"task": {"train_data": {"prefetch_buffer_size": 3}}},
        {"workspace": "/somewhere"},
        {"search": {"num_trials": 3}},
    ],
)
def test_config_change_that_does_not_affect_training_is_accepted(
    model_dir: str, overrides: Any
) -> None:
    changes = compatibility.check(_params(**overrides), model_dir)
    assert changes
    assert all(change.is_harmless for change in changes)


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ({"runtime": {"seed": 4}}, "runtime.seed: 0 -> 4"),
        (
            {"runtime": {"mixed_precision_dtype": "float16"}},
            "mixed_precision_dtype: None -> float16",
        ),
        ({"task": {"train_data": {"global_batch_size": 8}}}, "global_batch_size: 0 -> 8"),
        (
            {"task": {"train_data": {"input_path": "other"}}},
            "task.train_data.input_path:  -> other",
        ),
        ({"trainer": {"grad_accum_steps": 2}}, "trainer.grad_accum_steps: 1 -> 2"),
        ({"trainer": {"freeze": ["x"]}}, "trainer.freeze"),
        ({"task": {"train_data": {"cycle_length": 2}}}, "train_data.cycle_length: None -> 2"),
        ({"trainer": {"optimizer_config": {"optimizer": {"type": "sgd"}}}}, "optimizer.type"),
    ],
)
def test_config_change_that_affects_training_raises_an_error_that_shows_the_change(
    model_dir: str, overrides: Any, line: str
) -> None:
    params = _params(**overrides)
    with pytest.raises(errors.ConfigValueError, match="--allow_config_change") as error:
        compatibility.check(params, model_dir)
    assert line in str(error.value)
    assert "trainer.train_steps" not in str(error.value), "harmless changes are omitted"
    assert compatibility.check(params, model_dir, is_allowed=True)


@dataclasses.dataclass
class _OwnTrainerConfig(cfg.TrainerConfig):
    lookahead_steps: int = 5
    steps_per_critic: int = 5
    sync_interval: int = 5
    recovery_rate: int = 5


@pytest.mark.parametrize(
    "name", ["lookahead_steps", "steps_per_critic", "sync_interval", "recovery_rate"]
)
def test_changing_a_field_of_a_user_defined_trainer_config_raises_whatever_the_field_is_called(
    name: str, tmp_path: pathlib.Path
) -> None:
    with run_record.RunRecord(
        cfg.ExperimentConfig(trainer=_OwnTrainerConfig()), "train", str(tmp_path)
    ):
        (tmp_path / "ckpt-3.index").touch()
    params = cfg.ExperimentConfig(trainer=_OwnTrainerConfig(**{name: 10}))
    with pytest.raises(errors.ConfigValueError, match=rf"trainer\.{name}: 5 -> 10"):
        compatibility.check(params, str(tmp_path))


_RATIOS = {
    "learning_rate": {"type": "cosine", "cosine": {"decay_ratio": 1.0}},
    "warmup": {"type": "linear", "linear": {"warmup_ratio": 0.1}},
}


def _scheduled(steps: int = 40, **schedules: Any) -> cfg.ExperimentConfig:
    trainer = {"train_steps": steps, "optimizer_config": _RATIOS}
    params = _params(trainer=trainer).replace(trainer={"optimizer_config": schedules})
    return epochs.resolve(params)


def test_schedule_steps_derived_from_a_ratio_may_change_when_train_steps_changes(
    tmp_path: pathlib.Path,
) -> None:
    first = _scheduled(20)
    with run_record.RunRecord(first, "train", str(tmp_path)):
        pass
    (tmp_path / "ckpt-20.index").touch()
    assert compatibility.check(first, str(tmp_path)) == []
    changes = compatibility.check(_scheduled(40), str(tmp_path))
    assert [change.path for change in changes] == ["trainer.train_steps"]
    read = cfg.ExperimentConfig()
    read.override(yaml.safe_load((tmp_path / "params.yaml").read_text()))
    assert compatibility.check(read, str(tmp_path)) == []
    default = cfg.OptimizationConfig().warmup.linear.warmup_steps
    for other in (
        {"learning_rate": {"cosine": {"decay_steps": 40}}},
        {"learning_rate": {"cosine": {"decay_ratio": 0.5}}},
        {"warmup": {"linear": {"warmup_steps": 1}}},
        {"warmup": {"linear": {"warmup_steps": default, "warmup_ratio": None}}},
        {"warmup": {"type": None}},
    ):
        with pytest.raises(errors.ConfigValueError, match=r"_steps: |decay_ratio: |type: "):
            compatibility.check(_scheduled(40, **other), str(tmp_path))


def test_run_in_epochs_keeps_its_recorded_steps_if_a_restart_ends_before_it_counts_the_examples(
    tmp_path: pathlib.Path,
) -> None:
    def in_epochs(epochs: float, decay_ratio: float = 1.0) -> cfg.ExperimentConfig:
        schedule = {"type": "cosine", "cosine": {"decay_ratio": decay_ratio}}
        trainer = {"train_epochs": epochs, "optimizer_config": {"learning_rate": schedule}}
        return _params(trainer=trainer)

    def start(params: cfg.ExperimentConfig, steps_per_epoch: int | None = None) -> Any:
        """Run a start that ends before it knows its steps, or after; return the recorded config."""
        with run_record.RunRecord(params, "train", str(tmp_path)) as record:
            if steps_per_epoch:
                length = {"steps_per_epoch": steps_per_epoch}
                resolved = epochs.resolve(params.replace(trainer=length))
                record.replace_params(resolved.replace(trainer={"steps_per_epoch": 0}))
        return yaml.safe_load((tmp_path / "params.yaml").read_text())["trainer"]

    start(in_epochs(3.0), steps_per_epoch=10)
    (tmp_path / "ckpt-10.index").touch()
    recorded = start(in_epochs(3.0))
    assert recorded["optimizer_config"]["learning_rate"]["cosine"]["decay_steps"] == 30
    assert (recorded["train_steps"], recorded["train_epochs"]) == (30, None)
    # The steps of another number of epochs are unknown.
    recorded = start(in_epochs(4.0))
    assert (recorded["train_steps"], recorded["train_epochs"]) == (0, 4.0)
    start(in_epochs(4.0))
    with pytest.raises(errors.ConfigValueError, match=r"decay_ratio: 1\.0 -> 0\.5"):
        start(in_epochs(4.0, decay_ratio=0.5))


def test_field_that_may_change_is_recognized_only_by_its_full_path() -> None:
    def is_harmless(path: str) -> bool:
        return compatibility.Change(path=path, old=1, new=2).is_harmless

    harmless = "trainer.train_steps", "runtime.num_gpus", "task.validation_data.cycle_length"
    assert all(map(is_harmless, harmless))
    harmful = "trainer.one_shot.warmup_steps", "trainer.optimizer_config.optimizer.muon.ns_steps"
    assert not any(map(is_harmless, harmful))


def test_every_config_field_may_change_before_the_first_checkpoint(tmp_path: pathlib.Path) -> None:
    with run_record.RunRecord(_params(), "train", str(tmp_path)):
        pass
    assert compatibility.check(_params(runtime={"seed": 4}), str(tmp_path)) == []
    assert compatibility.check(_params(), str(tmp_path / "nowhere")) == []


@pytest.mark.parametrize(
    ("status", "kind", "file", "warns"),
    [
        ("done", "checkpoint", "log.txt", True),
        ("failed", "checkpoint", "log.txt", False),
        ("done", "record", "log.txt", False),
        ("done", "checkpoint", "model-3.index", False),
    ],
)
def test_run_whose_checkpoints_were_removed_logs_a_warning_before_it_starts_again(
    status: str,
    kind: str,
    file: str,
    warns: bool,
    tmp_path: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"status": status, "global_step": 3}))
    chain.append(str(tmp_path), kind, {"checkpoint": "ckpt-3"})
    (tmp_path / file).touch()
    assert compatibility.check(_params(), str(tmp_path)) == []
    assert ("has reached step 3" in caplog.text) is warns


def test_config_is_compared_with_params_yaml_in_a_model_garden_run_directory(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "ckpt-3.index").touch()
    parsing.serialize_config(_params(), str(tmp_path))
    with pytest.raises(errors.ConfigValueError, match=r"runtime\.seed"):
        compatibility.check(_params(runtime={"seed": 4}), str(tmp_path))


def test_field_missing_from_old_params_yaml_is_a_change_only_if_the_new_config_sets_it(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "ckpt-3.index").touch()
    old = _params().as_dict()
    del old["trainer"]["overfit_batches"], old["trainer"]["freeze"]
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(old))
    assert compatibility.check(_params(), str(tmp_path)) == []
    with pytest.raises(errors.ConfigValueError, match=r"overfit_batches: \(none\) -> 2"):
        compatibility.check(_params(trainer={"overfit_batches": 2}), str(tmp_path))
    with pytest.raises(errors.ConfigValueError, match=r"freeze: \(none\) -> \['conv'\]"):
        compatibility.check(_params(trainer={"freeze": ["conv"]}), str(tmp_path))


def test_damaged_params_yaml_allows_every_config_change(model_dir: str) -> None:
    (pathlib.Path(model_dir) / "params.yaml").write_text("a: [")
    assert compatibility.check(_params(runtime={"seed": 4}), model_dir) == []


def test_refused_config_change_leaves_the_model_directory_unchanged(model_dir: str) -> None:
    def contents() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in pathlib.Path(model_dir).iterdir()}

    before = contents()
    record = run_record.RunRecord(
        _params(runtime={"seed": 4}), "train", model_dir, allow_config_change=False
    )
    with pytest.raises(errors.ConfigValueError), record:
        pass
    assert contents() == before


@dataclasses.dataclass
class _Vocabulary(cfg.TaskConfig):
    MODEL_FILES = ("vocab_path",)

    vocab_path: str = ""


@pytest.mark.parametrize("mode", ["train", "eval", "predict"])
def test_run_with_a_changed_vocabulary_file_raises_unless_changes_are_allowed(
    mode: str, tmp_path: pathlib.Path
) -> None:
    vocab, model_dir = tmp_path / "vocab.txt", tmp_path / "run"
    vocab.write_text("a b")
    params = cfg.ExperimentConfig(task=_Vocabulary(vocab_path=str(vocab)))
    with run_record.RunRecord(params, "train", str(model_dir)):
        (model_dir / "ckpt-3.index").touch()
    with run_record.RunRecord(params, mode, str(model_dir)):
        pass
    vocab.write_text("b a")
    record = run_record.RunRecord(params, mode, str(model_dir))
    with pytest.raises(errors.ConfigValueError, match=r"task\.vocab_path\.\(sha256"), record:
        pass
    with run_record.RunRecord(params, mode, str(model_dir), allow_config_change=True):
        pass


def test_finished_run_with_a_changed_vocabulary_file_raises_unless_changes_are_allowed(
    tmp_path: pathlib.Path,
) -> None:
    vocab, model_dir = tmp_path / "vocab.txt", tmp_path / "run"
    vocab.write_text("a b")
    task, trainer = _Vocabulary(vocab_path=str(vocab)), cfg.TrainerConfig(train_steps=3)
    params = cfg.ExperimentConfig(task=task, trainer=trainer)
    with run_record.RunRecord(params, "train", str(model_dir)) as record:
        record.note(global_step=3)
        (model_dir / "ckpt-3.index").touch()
    assert run_record.is_finished(params, "train", str(model_dir))
    vocab.write_text("b a")
    with pytest.raises(errors.ConfigValueError, match=r"task\.vocab_path\.\(sha256"):
        run_record.is_finished(params, "train", str(model_dir))
    assert run_record.is_finished(params, "train", str(model_dir), allow_config_change=True)


@dataclasses.dataclass
class _ArchTask(cfg.TaskConfig):
    arch: Any = None


def test_evaluation_of_several_tasks_with_another_architecture_raises_unless_changes_are_allowed(
    tmp_path: pathlib.Path,
) -> None:
    def params(*archs: Any) -> multitask_configs.MultiTaskExperimentConfig:
        routines = [
            multitask_configs.TaskRoutine(
                task_name=f"task {number}", task_config=_ArchTask(arch=arch)
            )
            for number, arch in enumerate(archs)
        ]
        return multitask_configs.MultiTaskExperimentConfig(
            task=multitask_configs.MultiTaskConfig(task_routines=tuple(routines))
        )

    trained, other = params({"op": "a"}, {"op": "b"}), params({"op": "a"}, {"op": "c"})
    with run_record.RunRecord(trained, "train", str(tmp_path)):
        (tmp_path / "ckpt-3.index").touch()
    with run_record.RunRecord(trained, "eval", str(tmp_path)):
        pass
    record = run_record.RunRecord(other, "eval", str(tmp_path))
    with (
        pytest.raises(
            errors.ConfigValueError, match=r"routines\[task 1\]\.task_config\.arch\.op: b"
        ),
        record,
    ):
        pass
    with run_record.RunRecord(other, "eval", str(tmp_path), allow_config_change=True):
        pass
    # An evaluation of only some of the tasks, in any order, is none of another architecture.
    some = trained.replace()
    some.task.task_routines = some.task.task_routines[::-1]
    with run_record.RunRecord(some, "eval", str(tmp_path)):
        pass
    some.task.task_routines = some.task.task_routines[:1]
    with run_record.RunRecord(some, "eval", str(tmp_path)):
        pass


def test_restart_without_the_vocabulary_file_does_not_forget_the_checksum_of_that_file(
    tmp_path: pathlib.Path,
) -> None:
    vocab, model_dir = tmp_path / "vocab.txt", tmp_path / "run"
    vocab.write_text("a b")
    params = cfg.ExperimentConfig(task=_Vocabulary(vocab_path=str(vocab)))
    with run_record.RunRecord(params, "train", str(model_dir)):
        (model_dir / "ckpt-3.index").touch()
    vocab.unlink()
    with run_record.RunRecord(params, "train", str(model_dir)):
        pass
    vocab.write_text("b a")
    record = run_record.RunRecord(params, "train", str(model_dir))
    with pytest.raises(errors.ConfigValueError, match=r"task\.vocab_path\.\(sha256"), record:
        pass


def test_model_files_and_steps_of_several_tasks_are_compared_by_the_names_of_the_tasks(
    tmp_path: pathlib.Path,
) -> None:
    def params(*names: str, eval_steps: int = 1) -> multitask_configs.MultiTaskExperimentConfig:
        routines = tuple(
            multitask_configs.TaskRoutine(
                task_name=name,
                task_config=_Vocabulary(vocab_path=str(tmp_path / name)),
                eval_steps=eval_steps,
            )
            for name in names
        )
        return multitask_configs.MultiTaskExperimentConfig(
            task=multitask_configs.MultiTaskConfig(task_routines=routines)
        )

    model_dir = tmp_path / "run"
    both = "glue.mnli", "glue.rte"
    for name in both:
        (tmp_path / name).write_text(name)
    with run_record.RunRecord(params(*both), "train", str(model_dir)):
        (model_dir / "ckpt-3.index").touch()
    with run_record.RunRecord(params(*both, eval_steps=2), "train", str(model_dir)):
        pass
    path = model_dir / "run.json"
    record = json.loads(path.read_text())
    # Earlier versions recorded the positions of the tasks.
    positions = [f"task.task_routines[{index}].task_config.vocab_path" for index in (0, 1)]
    older = dict(zip(positions, record["model_files"].values(), strict=True))
    for model_files in (record["model_files"], older):
        path.write_text(json.dumps({**record, "model_files": model_files}))
        (tmp_path / "glue.rte").write_text("glue.rte")
        with run_record.RunRecord(params("glue.rte"), "eval", str(model_dir)):
            pass
        (tmp_path / "glue.rte").write_text("changed")
        other = run_record.RunRecord(params("glue.rte"), "eval", str(model_dir))
        with pytest.raises(errors.ConfigValueError, match=r"\[glue\.rte\].*\(sha256"), other:
            pass
