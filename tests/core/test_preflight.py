import dataclasses
from typing import ClassVar

import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import (
    base_task,
    base_trainer,
    best_checkpoint,
    preflight,
    task_factory,
    trainer_factory,
)
from official_lite.core import config_definitions as cfg
from official_lite.modeling.multitask import configs as multitask_configs


@pytest.mark.parametrize(
    ("trainer", "nearest"),
    [
        ({"name": "no_such_trainer"}, "no_such_trainer"),
        ({"hooks": ["early_stoping"]}, "`early_stopping`"),
        ({"hooks": [{"name": "early_stopping", "metrik": "mae"}]}, "`metric`"),
        ({"writers": ["console", "jsnl"]}, "`jsonl`"),
        ({"writers": [{"name": "jsonl", "paht": "x"}]}, "paht"),
    ],
)
def test_preflight_rejects_unknown_trainers_hooks_writers_and_arguments(
    experiment, trainer, nearest
) -> None:
    with pytest.raises(errors.UnknownNameError, match=nearest):
        preflight.check(experiment(trainer=trainer), "train")


def test_preflight_rejects_an_unknown_mode_and_an_evaluation_without_weights(
    experiment, tmp_path
) -> None:
    with pytest.raises(errors.UnknownNameError, match="`eval`"):
        preflight.check(experiment(), "evla")
    with pytest.raises(errors.CheckpointError, match="random weights"):
        preflight.check_evaluation(experiment(), "eval", str(tmp_path))
    params = experiment(task={"init_checkpoint": "x"})
    preflight.check_evaluation(params, "eval", str(tmp_path))


def test_error_for_evaluating_a_best_checkpoint_directory_suggests_init_checkpoint(
    experiment, tmp_path
) -> None:
    directory = str(tmp_path / "best_ckpt")
    exporter = best_checkpoint.BestCheckpointExporter(directory, "accuracy", "higher")
    exporter.maybe_export_checkpoint(tf.train.Checkpoint(x=tf.Variable(1.0)), {"accuracy": 0.5}, 7)
    with pytest.raises(errors.CheckpointError, match=r"`task\.init_checkpoint` to .*best_ckpt-7"):
        preflight.check_evaluation(experiment(), "eval", directory)


def _reading(train: str, validation: str = "") -> cfg.TaskConfig:
    return cfg.TaskConfig(
        train_data=cfg.DataConfig(input_path=train),
        validation_data=cfg.DataConfig(input_path=validation),
    )


def test_missing_input_file_raises_only_if_the_mode_reads_it(experiment, tmp_path) -> None:
    (tmp_path / "a.txt").touch()
    params = experiment()
    params.task = _reading(f"{tmp_path}/a*, {tmp_path}", "nowhere.txt")
    preflight.check_input_files(params, "train")
    wanted = r"`task\.validation_data\.input_path`: The input file `nowhere\.txt`"
    with pytest.raises(errors.DataError, match=wanted):
        preflight.check_input_files(params, "train_and_eval")
    routines = tuple(
        multitask_configs.TaskRoutine(task_name=name, task_config=_reading(path))
        for name, path in (("a", str(tmp_path)), ("b", "nowhere*"))
    )
    several = multitask_configs.MultiTaskExperimentConfig(
        task=multitask_configs.MultiTaskConfig(task_routines=routines)
    )
    wanted = r"`task\.task_routines\[1\]\.task_config\.train_data\.input_path`"
    with pytest.raises(errors.DataError, match=wanted):
        preflight.check_input_files(several, "train")


@dataclasses.dataclass
class _FetchedConfig(cfg.DataConfig):
    NAMES_FILES: ClassVar[bool] = False


def test_preflight_does_not_check_input_files_that_may_be_created_later(
    experiment, tmp_path
) -> None:
    params = experiment()
    for path in ("dummy", "gs://bucket/nowhere", f"{tmp_path}/first/written*"):
        params.task = _reading(path)
        preflight.check_input_files(params, "train", [str(tmp_path / "first")])
    params.task = cfg.TaskConfig(train_data=_FetchedConfig(input_path="nowhere.txt"))
    preflight.check_input_files(params, "train")
    params.task = _reading("nowhere.txt")
    params.task.train_data.enable_tf_data_service = True
    preflight.check_input_files(params, "train")


def test_input_path_with_a_tilde_is_searched_in_the_home_directory(
    experiment, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "here").touch()
    params = experiment()
    params.task = _reading("~/here")
    preflight.check_input_files(params, "train")
    params.task = _reading("~/here, ~/nowhere")
    with pytest.raises(errors.DataError, match=f"`{tmp_path}/nowhere` does not exist"):
        preflight.check_input_files(params, "train")


class _Task(base_task.Task):
    def build_inputs(self, params, input_context=None):
        """Do nothing, because no test reads data."""


@pytest.fixture
def starting(experiment):
    """Return a function that builds the config of a task class with an init checkpoint."""

    def make(task_cls=_Task, **overrides):
        class TaskConfig(cfg.TaskConfig):
            pass

        task_factory.register_task_cls(TaskConfig)(task_cls)
        params = experiment(**overrides)
        params.task = TaskConfig(init_checkpoint="finetun/best_ckpt")
        return params

    return make


def test_missing_init_checkpoint_raises_unless_an_earlier_phase_may_write_it(
    starting, tmp_path
) -> None:
    def check(model_dir, **phases):
        preflight.check_init_checkpoint(params, str(model_dir), phases)

    params = starting()
    with pytest.raises(errors.CheckpointError, match="Did you mean the phase `finetune`"):
        check(tmp_path, pretrain="/run/pretrain", finetune="/run/finetune")
    check(tmp_path, finetun="finetun")
    with pytest.raises(errors.CheckpointError, match="finetun/best_ckpt"):
        check(tmp_path, fine="fine", other="finetun/best")
    tf.train.Checkpoint(v=tf.Variable(1.0)).save(str(tmp_path / "ckpt"))
    check(tmp_path)
    params.task.init_checkpoint = str(tmp_path)
    check("elsewhere")


def test_init_checkpoint_read_by_a_custom_initialize_is_not_checked(starting, tmp_path) -> None:
    class Task(_Task):
        def initialize(self, model):
            """Stand in for a method that reads `init_checkpoint` as the name of an online model."""

    class Trainer(base_trainer.Trainer):
        def initialize(self):
            """Stand in for a method that does not read `init_checkpoint` as a path."""

    trainer_factory.register_trainer_cls("tests/starts_by_itself")(Trainer)
    preflight.check_init_checkpoint(starting(Task), str(tmp_path))
    params = starting(Task)
    params.task.init_checkpoint = ""
    preflight.check_evaluation(params, "eval", str(tmp_path))
    trainer = {"name": "tests/starts_by_itself"}
    preflight.check_init_checkpoint(starting(trainer=trainer), str(tmp_path))


def test_preflight_loads_a_hook_from_a_file_in_the_workspace(experiment, tmp_path) -> None:
    (tmp_path / "mine.py").write_text(
        "from official_lite import orbit\n"
        "class Mine(orbit.Hook):\n"
        "    def __init__(self, size): self.size = size\n"
    )
    entry = {"name": "{workspace}/mine.py", "size": 3}
    params = experiment(trainer={"hooks": [entry]}, workspace=str(tmp_path))
    (create,) = preflight.find_hooks(params)
    assert create().size == 3


def test_event_files_are_written_unless_the_writers_omit_tensorboard(experiment) -> None:
    assert preflight.writes_event_files(experiment())
    params = experiment(trainer={"writers": ["jsonl"]})
    assert not preflight.writes_event_files(params)
    assert len(preflight.find_writers(params)) == 1


def test_infinite_validation_data_raise_unless_validation_steps_is_set(
    experiment, make_trainer
) -> None:
    endless = tf.data.Dataset.from_tensors(([[1.0, 2.0]], [[1.0]])).repeat()
    params = experiment()
    trainer = make_trainer(params, validation_dataset=endless)
    with pytest.raises(errors.ConfigValueError, match=r"trainer.validation_steps"):
        preflight.check_evaluation_data(params, trainer)
    preflight.check_evaluation_data(experiment(trainer={"validation_steps": 3}), trainer)
    preflight.check_evaluation_data(params, make_trainer(params, evaluate=False))
