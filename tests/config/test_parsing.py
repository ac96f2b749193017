import dataclasses
import logging
import os
import pathlib

import pytest

import registry_imports  # noqa: F401  (imported for its registrations)
from official_lite.common import errors
from official_lite.config import epochs, gin_config, parsing, phase_configs
from official_lite.core import config_definitions as cfg
from official_lite.core import exp_factory
from official_lite.modeling import hyperparams
from official_lite.modeling.multitask import configs as multitask_configs


@dataclasses.dataclass
class StoreConfig(hyperparams.Config):
    url: str = ""


@dataclasses.dataclass
class StoresConfig(hyperparams.OneOfConfig):
    type: str = "near"
    near: StoreConfig = dataclasses.field(default_factory=StoreConfig)
    far: StoreConfig = dataclasses.field(default_factory=StoreConfig)


@dataclasses.dataclass
class ToyConfig(cfg.TaskConfig):
    width: int = 4
    store: StoresConfig = dataclasses.field(default_factory=StoresConfig)


@pytest.fixture(autouse=True)
def toy_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exp_factory, "_REGISTERED_CONFIGS", dict(exp_factory._REGISTERED_CONFIGS))
    exp_factory.register_config_factory("toy")(
        lambda: cfg.ExperimentConfig(task=ToyConfig(), trainer=cfg.TrainerConfig(train_steps=1))
    )


def _parse(**options: object) -> cfg.ExperimentConfig:
    options = parsing.ParseConfigOptions(experiment="toy", **options)
    return parsing.parse_configuration(options, print_return=False)


def test_config_with_a_masked_password_raises_only_if_its_option_is_selected(
    tmp_path: pathlib.Path,
) -> None:
    file = tmp_path / "params.yaml"
    file.write_text("task: {store: {near: {url: 'postgresql://me:***@host/runs'}}}")
    with pytest.raises(errors.ConfigValueError, match=r"task\.store\.near\.url"):
        _parse(config_file=[str(file)])
    params = _parse(config_file=[str(file)], set=["task.store.type=far"])
    assert params.task.store.type == "far"


def test_later_config_sources_override_earlier_ones(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("trainer: {train_steps: 2, validation_steps: 2, max_to_keep: 2}")
    params = _parse(
        config_file=[str(file)],
        params_override="trainer.train_steps=3,trainer.validation_steps=3",
        set=["trainer.train_steps=4"],
    )
    trainer = params.trainer
    assert (trainer.train_steps, trainer.validation_steps, trainer.max_to_keep) == (4, 3, 2)


def test_tpu_flag_overrides_runtime_tpu_only_if_the_flag_is_set(tmp_path: pathlib.Path) -> None:
    assert _parse(params_override="runtime.tpu='my-tpu'").runtime.tpu == "my-tpu"
    assert _parse(tpu="other").runtime.tpu == "other"


def test_tf_data_service_flag_enables_the_service_in_the_data_config() -> None:
    data = _parse(tf_data_service="grpc://host:1").task.train_data
    assert data.enable_tf_data_service
    assert data.tf_data_service_address == "grpc://host:1"
    task = _parse(tf_data_service="grpc://host:1", params_override="task.validation_data=null").task
    assert task.validation_data is None


def test_params_override_can_be_a_remote_file_and_can_set_a_field_to_a_url(
    tmp_path: pathlib.Path,
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("task: {train_data: {input_path: gs://bucket/file}}")
    overrides = [f"file://{file}", "task.train_data.input_path='gs://bucket/file'"]
    for override in overrides:
        assert _parse(params_override=override).task.train_data.input_path == "gs://bucket/file"


def test_set_flag_without_an_equals_sign_raises() -> None:
    with pytest.raises(errors.ConfigValueError, match="path=value"):
        _parse(set=["trainer.train_steps"])


def test_parsing_params_yaml_reproduces_the_serialized_config(
    tmp_path: pathlib.Path,
) -> None:
    params = _parse(set=["task.width=7", "runtime.distribution_strategy=off"])
    parsing.serialize_config(params, str(tmp_path))
    again = _parse(config_file=[str(tmp_path / "params.yaml")])
    assert again.as_dict() == params.as_dict()
    assert isinstance(again.task, ToyConfig)
    assert again.task.width == 7


@dataclasses.dataclass(kw_only=True)
class Flags(parsing.ParseConfigOptions):
    """Parsing options with the flags that are optional for a script."""

    experiment: str = "toy"
    dry_run: bool = False
    fast_dev_run: bool = False


def test_dry_run_sets_one_training_step_and_one_validation_step() -> None:
    trainer = parsing.parse_configuration(Flags(dry_run=True), print_return=False).trainer
    assert (trainer.train_steps, trainer.validation_steps) == (1, 1)


def test_fast_dev_run_sets_20_steps_in_place_of_epochs_in_every_phase() -> None:
    settings = [
        "trainer.train_epochs=3",
        "trainer.validate_every_epochs=1",
        "task.train_data.num_examples=1000",
        "task.train_data.global_batch_size=10",
        "phases[0]={name: a, overrides: {trainer.train_steps: 500}}",
        "phases[1]={name: b, overrides: {trainer: {train_epochs: 5, checkpoint_every_epochs: 1}}}",
    ]
    flags = Flags(fast_dev_run=True, set=settings)
    params = parsing.parse_configuration(flags, print_return=False)
    phases = [phase_configs.resolve(params, index) for index in range(2)]
    for trainer in (params.trainer, *(phase.trainer for phase in phases)):
        assert (trainer.train_steps, trainer.validation_interval) == (20, 10)
        assert (trainer.validation_steps, trainer.log_interval) == (2, 1)
        assert trainer.train_epochs is trainer.validate_every_epochs is None


def test_fast_dev_run_has_one_epoch_if_the_config_does_not_state_the_length_of_an_epoch() -> None:
    examples = ["task.train_data.num_examples=1000", "task.train_data.global_batch_size=10"]
    phase = "phases[0]={name: a, overrides: {task.train_data.num_examples: 70}}"
    for settings, length in (([], 20), (examples, 100), (["trainer.steps_per_epoch=7"], 7)):
        for in_epochs in ("trainer.train_epochs=3", "trainer.validate_every_epochs=1"):
            flags = Flags(fast_dev_run=True, set=[in_epochs, *settings])
            params = parsing.parse_configuration(flags, print_return=False)
            assert (params.trainer.train_steps, params.trainer.steps_per_epoch) == (20, length)
    flags = Flags(fast_dev_run=True, set=["trainer.train_epochs=3", examples[1], phase])
    params = parsing.parse_configuration(flags, print_return=False)
    assert epochs.resolve(phase_configs.resolve(params, 0)).trainer.steps_per_epoch == 7


@pytest.mark.parametrize(("flag", "steps"), [("dry_run", 1), ("fast_dev_run", 2)])
def test_short_run_evaluates_each_of_several_tasks_for_a_few_steps_in_every_phase(
    flag: str, steps: int
) -> None:
    def routines() -> tuple[multitask_configs.TaskRoutine, ...]:
        make = multitask_configs.TaskRoutine
        tasks = [make(task_name=name, task_config=ToyConfig(), eval_steps=-1) for name in "ab"]
        return tuple(tasks)

    @exp_factory.register_config_factory("trains_both")
    def trains_both() -> cfg.ExperimentConfig:
        task = multitask_configs.MultiTaskConfig(task_routines=routines())
        return multitask_configs.MultiTaskExperimentConfig(task=task)

    @exp_factory.register_config_factory("evaluates_both")
    def evaluates_both() -> cfg.ExperimentConfig:
        return multitask_configs.MultiEvalExperimentConfig(task=ToyConfig(), eval_tasks=routines())

    def parse(experiment: str, *settings: str) -> cfg.ExperimentConfig:
        flags = Flags(experiment=experiment, set=["trainer.train_steps=5", *settings])
        setattr(flags, flag, True)
        return parsing.parse_configuration(flags, print_return=False)

    override = "{'task.task_routines[1].eval_steps': 500}"
    phased = parse("trains_both", f"phases[0]={{name: first, overrides: {override}}}")
    phase = phase_configs.resolve(phased, 0)
    for params in (phased, phase, parse("evaluates_both")):
        tasks = hyperparams.get_by_path(params, "task.task_routines") or params.eval_tasks
        assert [task.eval_steps for task in tasks] == [None, None]
        assert params.trainer.validation_steps == steps


def _write_config(directory: pathlib.Path, text: str) -> str:
    directory.mkdir(exist_ok=True)
    path = directory / "config.yaml"
    path.write_text(text)
    return str(path)


def test_workspace_is_the_directory_of_the_config_file_that_contains_the_placeholder(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "trainer: {name: '{workspace}/trainer.py:Mine'}"
    plain = _write_config(tmp_path / "plain", "trainer: {train_steps: 3}")
    for name in ("first", "copy"):
        path = _write_config(tmp_path / name, text)
        params = _parse(config_file=[plain, path])
        assert params.trainer.name == f"{tmp_path}/{name}/trainer.py:Mine"
        assert params.workspace == str(tmp_path / name)
    monkeypatch.chdir(tmp_path / "copy")
    assert _parse(config_file=["config.yaml"]) == _parse(config_file=[path])


def test_workspace_field_overrides_the_directory_of_the_config_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "workspace: files\ntrainer: {name: '{workspace}/t.py:T'}"
    path = _write_config(tmp_path / "a", text)
    monkeypatch.chdir(tmp_path)
    assert _parse(config_file=[path]).workspace == str(tmp_path / "a" / "files")
    assert _parse(params_override=path).workspace == str(tmp_path / "a" / "files")
    params = _parse(config_file=[path], set=["workspace=b"])
    assert params.trainer.name == f"{tmp_path}/b/t.py:T"


def test_params_yaml_contains_train_steps_in_place_of_train_epochs(tmp_path: pathlib.Path) -> None:
    data = "task.train_data.num_examples=100,task.train_data.global_batch_size=10"
    params = _parse(params_override=f"trainer.train_epochs=3,{data}")
    assert (params.trainer.train_steps, params.trainer.train_epochs) == (30, None)
    parsing.serialize_config(params, str(tmp_path))
    file = str(tmp_path / "params.yaml")
    assert _parse(config_file=[file]) == params
    assert _parse(config_file=[file], set=["trainer.train_steps=7"]).trainer.train_steps == 7


def test_parsed_config_is_locked_by_default() -> None:
    options = Flags(set=["trainer.train_epochs=1", "trainer.steps_per_epoch=5"])
    params = parsing.parse_configuration(options, lock_return=False, print_return=False)
    params.trainer.train_steps += 1
    assert params.trainer.train_steps == 6
    with pytest.raises(errors.LockedConfigError):
        _parse().trainer.optimizer_config.optimizer.type = "sgd"


def test_parsing_raises_for_an_unknown_field_in_the_overrides_of_a_phase() -> None:
    with pytest.raises(errors.UnknownKeyError, match="In the phase 'a'"):
        _parse(set=["phases[0]={name: a, overrides: {trainer.trian_steps: 1}}"])


def test_epochs_of_a_phase_are_converted_with_the_data_of_the_phase() -> None:
    data = ["task.train_data.num_examples=100", "task.train_data.global_batch_size=10"]
    phase = "phases[0]={name: a, overrides: {task.train_data.global_batch_size: 20}}"
    params = _parse(set=["trainer.train_epochs=1", *data, phase])
    assert params.trainer.train_epochs == 1
    assert epochs.resolve(phase_configs.resolve(params, 0)).trainer.train_steps == 5


def test_error_for_a_missing_module_to_import_names_the_module() -> None:
    with pytest.raises(errors.UnknownNameError, match="no_such_package"):
        parsing.import_modules(["no_such_package.tasks"])


def test_experiments_of_an_imported_file_are_registered(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from official_lite.core import exp_factory, config_definitions as cfg\n"
        "@exp_factory.register_config_factory('mine')\n"
        "def mine():\n    return cfg.ExperimentConfig()\n"
    )
    parsing.import_modules([str(file)])
    assert "mine" in exp_factory.list_experiments()


def test_safe_config_rejects_code_except_in_the_registered_experiment() -> None:
    with pytest.raises(errors.ConfigValueError, match="'os:abort' can run code"):
        _parse(set=["trainer.name='os:abort'"], safe_config=True)
    assert _parse(set=["trainer.name='os:abort'"]).trainer.name == "os:abort"

    def factory() -> cfg.ExperimentConfig:
        return cfg.ExperimentConfig(trainer=cfg.TrainerConfig(name="my.package:Trainer"))

    exp_factory.register_config_factory("safe_toy")(factory)
    options = parsing.ParseConfigOptions(experiment="safe_toy", safe_config=True)
    params = parsing.parse_configuration(options, print_return=False)
    assert params.trainer.name == "my.package:Trainer"


def test_home_directory_is_expanded_in_every_config_source(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.yaml").write_text("task: {train_data: {input_path: [~/a, '~/b*', /c~/d]}}")
    (tmp_path / "b.yaml").write_text("task: {init_checkpoint: ~/ckpt-1}")
    hook = "{name: best_checkpoint, metric: loss, directory: ~/best}"
    params = _parse(
        config_file=["~/a.yaml"],
        params_override="~/b.yaml",
        set=["prediction.output_dir=~/predictions", f"trainer.hooks=[{hook}]"],
    )
    assert list(params.task.train_data.input_path) == [f"{tmp_path}/a", f"{tmp_path}/b*", "/c~/d"]
    assert params.task.init_checkpoint == f"{tmp_path}/ckpt-1"
    assert params.prediction.output_dir == f"{tmp_path}/predictions"
    assert params.trainer.hooks[0].directory == f"{tmp_path}/best"


def test_workspace_placeholder_is_replaced_at_any_depth() -> None:
    params = cfg.ExperimentConfig()
    params.override(
        {
            "workspace": "/w",
            "pipeline": {"initialize": "{workspace}/stages.py:Start"},
            "task": {"train_data": {"input_path": ["{workspace}/a", "b"]}},
            "trainer": {
                "name": "{workspace}/t.py:T",
                "hooks": [{"name": "h", "files": [["{workspace}/x"], {"y": "{workspace}/y"}]}],
            },
            "phases": [{"name": "a", "overrides": {"task": {"name": "{workspace}/n"}}}],
        }
    )
    expanded = parsing.expand(params)
    assert expanded.pipeline.initialize == "/w/stages.py:Start"
    assert expanded.task.train_data.input_path == ["/w/a", "b"]
    assert expanded.trainer.name == "/w/t.py:T"
    assert expanded.trainer.hooks[0].as_dict()["files"] == [["/w/x"], {"y": "/w/y"}]
    assert expanded.phases[0].overrides.task.name == "/w/n"
    assert not parsing.uses_workspace(expanded)
    assert parsing.uses_workspace(params)


def test_error_for_a_placeholder_without_a_workspace_names_the_flag_to_set() -> None:
    params = cfg.ExperimentConfig(task=cfg.TaskConfig(name="{workspace}/x"))
    with pytest.raises(errors.ConfigValueError, match="--set=workspace="):
        parsing.expand(params)


def test_default_workspace_replaces_the_placeholder_and_is_recorded_in_the_config() -> None:
    params = cfg.ExperimentConfig(task=cfg.TaskConfig(name="{workspace}/x"))
    expanded = parsing.expand(params, default="/d")
    assert (expanded.task.name, expanded.workspace) == ("/d/x", "/d")
    assert parsing.expand(expanded, default="/other") == expanded


def test_relative_workspace_becomes_an_absolute_path(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert parsing.expand(cfg.ExperimentConfig(workspace="w")).workspace == str(tmp_path / "w")
    assert parsing.place("w", relative_to="/a/b") == os.path.join("/a/b", "w")
    assert parsing.place("gs://bucket/w") == "gs://bucket/w"


def test_workspace_field_that_contains_the_workspace_placeholder_raises() -> None:
    with pytest.raises(errors.ConfigValueError, match="expected a directory"):
        parsing.expand(cfg.ExperimentConfig(workspace="{workspace}/x"))


def test_config_without_the_workspace_placeholder_is_returned_unchanged() -> None:
    params = cfg.ExperimentConfig()
    assert parsing.expand(params, default="/d") is params


STEPS, EPOCHS = "trainer.train_steps=7", "trainer.train_epochs=3"


def _trainer_of_digits(**options):
    flags = parsing.ParseConfigOptions(experiment="vision/digits_mlp", **options)
    return parsing.ExperimentParser(flags).parse().trainer


@pytest.mark.parametrize("given", [[STEPS, EPOCHS], [EPOCHS, STEPS]])
def test_mutually_exclusive_fields_set_in_the_same_config_source_raise(given) -> None:
    with pytest.raises(errors.ConfigValueError, match="--set has both") as caught:
        _trainer_of_digits(set=given)
    assert "`trainer.train_steps` (7 steps)" in str(caught.value)
    assert "`trainer.train_epochs` (3 epochs)" in str(caught.value)
    with pytest.raises(errors.ConfigValueError, match="`train_steps` is 7 and `train_epochs` is 3"):
        _trainer_of_digits(params_override=",".join(given))
    gin_config.parse_gin([], [f"trainer/params.{one.partition('.')[2]}" for one in given])
    with pytest.raises(errors.ConfigValueError, match="gin has both"):
        _trainer_of_digits()


def test_order_of_set_flags_does_not_change_the_config(tmp_path: pathlib.Path) -> None:
    rate = "trainer.optimizer_config.learning_rate"
    given = [f"{rate}.constant.learning_rate=0.5", f"{rate}.type=constant", "trainer.hooks=[a, b]"]
    given += ["trainer.hooks[1].seconds=3", "trainer.hooks[1].name=c", "task.name=010"]
    trainers = [_trainer_of_digits(set=given), _trainer_of_digits(set=given[::-1])]
    assert trainers[0] == trainers[1]
    assert trainers[0].optimizer_config.learning_rate.get().learning_rate == 0.5
    assert trainers[0].hooks[0] == "a"
    assert trainers[0].hooks[1].as_dict() == {"name": "c", "seconds": 3}
    for contradiction in (["task.name=a", "task.name.x=1"], ["task.name.x=1", "task.name=a"]):
        with pytest.raises(errors.ConfigValueError, match="also a part of it"):
            _trainer_of_digits(set=contradiction)


def test_later_config_source_replaces_a_mutually_exclusive_field_and_logs_the_replacement(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="absl")
    file = tmp_path / "my.yaml"
    file.write_text("trainer: {train_epochs: 3}")
    trainer = _trainer_of_digits(
        config_file=[str(file)], set=[STEPS, "trainer.validate_every_epochs=1"]
    )
    assert (trainer.train_steps, trainer.train_epochs) == (7, None)
    assert [record.message for record in caplog.records] == [
        f"{file}: `trainer.train_epochs` (3 epochs) replaces `trainer.train_steps` (600 steps).",
        "--set: `trainer.train_steps` (7 steps) replaces `trainer.train_epochs` (3 epochs).",
        "--set: `trainer.validate_every_epochs` (1 epoch) replaces "
        "`trainer.validation_interval` (300 steps).",
    ]


def test_mutually_exclusive_field_set_to_null_neither_raises_nor_logs(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="absl")
    file = tmp_path / "params.yaml"
    file.write_text("trainer: {train_steps: 7, train_epochs: null}")
    assert _trainer_of_digits(config_file=[str(file)]).train_steps == 7
    assert _trainer_of_digits(set=["trainer.train_epochs=null", STEPS]).train_steps == 7
    assert not caplog.records
