import pytest

from official_lite.common import errors
from official_lite.core import config_definitions as cfg


@pytest.mark.parametrize(
    ("block", "field", "value"),
    [
        ("trainer", "train_steps", -1),
        ("trainer", "steps_per_loop", 0),
        ("trainer", "validation_steps", 0),
        ("trainer", "best_checkpoint_metric_comp", "best"),
        ("trainer", "best_checkpoint_eval_metric", "accuracy"),
        ("trainer", "grad_accum_steps", 0),
        ("trainer", "log_interval", -1),
        ("trainer", "train_epochs", 0),
        ("trainer", "checkpoint_every_epochs", -1),
        ("trainer", "steps_per_epoch", -1),
        ("trainer", "freeze", ["backbone/("]),
        ("runtime", "seed", -1),
    ],
)
def test_value_that_cannot_work_is_refused_before_anything_is_built(
    block: str, field: str, value: object
) -> None:
    params = cfg.ExperimentConfig()
    params.override({block: {field: value}})
    with pytest.raises(errors.ConfigValueError, match=field):
        params.validate()


def test_defaults_are_valid() -> None:
    cfg.ExperimentConfig().validate()


def test_field_without_effect_is_named_in_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    params = cfg.ExperimentConfig(runtime=cfg.RuntimeConfig(per_gpu_thread_count=2))
    optimizer = {"type": "adamw", "adamw": {"global_clipnorm": 5.0}}
    params.override({"trainer": {"optimizer_config": {"optimizer": optimizer}}})
    cfg.warn_about_dead_fields(params)
    assert "runtime.per_gpu_thread_count: 2" in caplog.text
    assert "optimizer.adamw.global_clipnorm: 5.0` has no effect" in caplog.text
    assert "gradient_clip_norm: 1` clips all gradients first" in caplog.text


def test_nothing_is_said_of_fields_that_are_not_set(caplog: pytest.LogCaptureFixture) -> None:
    params = cfg.ExperimentConfig()
    optimizer = {"type": "adamw", "adamw": {"global_clipnorm": 0.5}}
    params.override({"trainer": {"optimizer_config": {"optimizer": optimizer}}})
    cfg.warn_about_dead_fields(params)
    assert not caplog.records


def test_model_garden_literal_parses() -> None:
    params = cfg.ExperimentConfig(
        task=cfg.TaskConfig(train_data=cfg.DataConfig(input_path="a*", global_batch_size=8)),
        trainer=cfg.TrainerConfig(
            steps_per_loop=100,
            optimizer_config=cfg.OptimizationConfig({"optimizer": {"type": "sgd"}}),
        ),
    )
    assert params.trainer.optimizer_config.optimizer.type == "sgd"
    assert params.as_dict()["task"]["train_data"]["input_path"] == "a*"


def test_number_of_examples_is_positive() -> None:
    with pytest.raises(errors.ConfigValueError, match="num_examples"):
        cfg.DataConfig(num_examples=0).validate()
    cfg.DataConfig(num_examples=-1).validate()


def test_hook_without_a_name_is_refused_with_its_place() -> None:
    with pytest.raises(errors.ConfigValueError, match=r"`trainer\.hooks\[0\]`.*`name` is missing"):
        cfg.ExperimentConfig({"trainer": {"hooks": [{"patience": 3}]}})


def test_parts_of_an_init_checkpoint_are_one_text_or_a_list() -> None:
    assert cfg.TaskConfig().init_checkpoint_modules == "all"
    modules = cfg.TaskConfig(init_checkpoint_modules=["backbone", "head"]).init_checkpoint_modules
    assert modules == ["backbone", "head"]
