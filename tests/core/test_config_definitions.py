import pytest

from official_lite.common import errors
from official_lite.core import config_definitions as cfg

REFUSED = [
    # The block, the field, the value, and text that the message contains instead of the field.
    ("trainer", "train_steps", -1, ""),
    ("trainer", "steps_per_loop", 0, ""),
    ("trainer", "validation_steps", 0, ""),
    ("trainer", "best_checkpoint_metric_comp", "best", ""),
    ("trainer", "best_checkpoint_eval_metric", "accuracy", ""),
    ("trainer", "grad_accum_steps", 0, ""),
    ("trainer", "log_interval", -1, ""),
    ("trainer", "overfit_batches", -1, ""),
    ("trainer", "train_epochs", 0, ""),
    ("trainer", "checkpoint_every_epochs", -1, ""),
    ("trainer", "steps_per_epoch", -1, ""),
    ("trainer", "freeze", ["backbone/("], ""),
    ("runtime", "seed", -1, ""),
    ("runtime", "distribution_strategy", "mirored", "`mirrored`"),
    ("runtime", "execution", "xla_lop", "`xla_loop`"),
    ("runtime", "mixed_precision_dtype", "float15", ""),
    ("runtime", "loss_scale", "static", ""),
    ("prediction", "format", "parqet", "`parquet`"),
    ("prediction", "checkpoint", "first", ""),
    ("prediction", "rows_per_shard", 0, ""),
    ("prediction", "output_dir", "", ""),
    ("task", "train_data", {"num_examples": 0}, "num_examples"),
]


def test_invalid_config_values_raise_in_override_or_validate() -> None:
    accepted = []
    for block, field, value, named in REFUSED:
        params = cfg.ExperimentConfig()
        try:
            params.override({block: {field: value}})
            params.validate()
        except errors.ConfigValueError as error:
            if (named or field) in str(error):
                continue
        accepted.append((block, field, value))
    assert accepted == []


def test_default_config_and_model_garden_values_are_valid() -> None:
    cfg.ExperimentConfig().validate()
    cfg.DataConfig(num_examples=-1).validate()
    cfg.TaskConfig(init_checkpoint_modules=["backbone", "head"]).validate()


@pytest.mark.parametrize("name", ["test_data", "predict_data"])
def test_unset_fields_of_test_and_predict_data_are_taken_from_validation_data(
    name: str,
) -> None:
    task = cfg.TaskConfig(validation_data=cfg.DataConfig(input_path="a", cache=True))
    task.override({name: {"input_path": "b"}, "validation_data": {"global_batch_size": 4}})
    assert getattr(task, name) == cfg.DataConfig(input_path="b", cache=True, global_batch_size=4)
    assert task.validation_data == cfg.DataConfig(input_path="a", cache=True, global_batch_size=4)
    task.override({"validation_data": {"global_batch_size": 8}, name: {"cache": False}})
    assert getattr(task, name) == cfg.DataConfig(input_path="b", global_batch_size=4)


def test_predict_data_does_not_copy_fields_specific_to_the_validation_data() -> None:
    of_tfds = cfg.DataConfig(
        tfds_name="mnist", tfds_split="test", label_column="y", num_examples=9, cache=True
    )
    task = cfg.TaskConfig(validation_data=of_tfds)
    task.override({"predict_data": {"input_path": "b"}})
    assert task.predict_data == cfg.DataConfig(input_path="b", cache=True)
    task = cfg.TaskConfig(
        validation_data=cfg.DataConfig(input_path="a", source="csv", columns=["x"], schema="s")
    )
    task.override({"predict_data": {"tfds_name": "mnist", "columns": ["z"]}})
    assert task.predict_data == cfg.DataConfig(tfds_name="mnist", columns=["z"])


def test_warning_names_config_fields_without_effect(caplog: pytest.LogCaptureFixture) -> None:
    params = cfg.ExperimentConfig(runtime=cfg.RuntimeConfig(per_gpu_thread_count=2))
    optimizer = {"type": "adamw", "adamw": {"global_clipnorm": 5.0}}
    params.override({"trainer": {"optimizer_config": {"optimizer": optimizer}}})
    cfg.warn_about_dead_fields(params)
    assert "runtime.per_gpu_thread_count: 2" in caplog.text
    assert "optimizer.adamw.global_clipnorm: 5.0` has no effect" in caplog.text
    assert "gradient_clip_norm: 1` clips all gradients first" in caplog.text


def test_config_fields_that_are_unset_or_have_an_effect_cause_no_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    params = cfg.ExperimentConfig()
    optimizer = {"type": "adamw", "adamw": {"global_clipnorm": 0.5}}
    params.override({"trainer": {"optimizer_config": {"optimizer": optimizer}}})
    cfg.warn_about_dead_fields(params)
    assert not caplog.records


def test_experiment_config_written_for_the_model_garden_is_accepted() -> None:
    params = cfg.ExperimentConfig(
        task=cfg.TaskConfig(train_data=cfg.DataConfig(input_path="a*", global_batch_size=8)),
        trainer=cfg.TrainerConfig(
            steps_per_loop=100,
            optimizer_config=cfg.OptimizationConfig({"optimizer": {"type": "sgd"}}),
        ),
    )
    assert params.trainer.optimizer_config.optimizer.type == "sgd"
    assert params.as_dict()["task"]["train_data"]["input_path"] == "a*"


def test_error_for_a_hook_without_a_name_contains_its_config_path_and_the_right_form() -> None:
    message = r"`trainer\.hooks\[0\]`.*`name` is missing.*{name: early_stopping, argument: value}"
    with pytest.raises(errors.ConfigValueError, match=message):
        cfg.ExperimentConfig({"trainer": {"hooks": [{"early_stopping": {"patience": 3}}]}})


@pytest.mark.parametrize("suffix", ["", "_class_path"])
def test_pipeline_config_accepts_paddlerec_stage_names(suffix: str) -> None:
    names = ["instance", "network", "startup", "runner", "terminal"]
    config = cfg.PipelineConfig({name + suffix: name for name in names})
    fields = ["prepare", "build", "initialize", "run", "finalize"]
    assert config.as_dict() == dict(zip(fields, names, strict=True))


def test_error_for_a_paddlerec_runner_block_suggests_pipeline_and_phases() -> None:
    runner = [{"name": "train_runner", "class": "train", "epochs": 2}]
    with pytest.raises(errors.UnknownKeyError, match=r"`pipeline`.*`phases`.*docs/stages\.md"):
        cfg.ExperimentConfig().override({"runner": runner})
    with pytest.raises(errors.UnknownKeyError, match="`trainer`"):
        cfg.ExperimentConfig().override({"trainr": {}})
