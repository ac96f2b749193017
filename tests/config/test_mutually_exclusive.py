import logging
import pathlib

import pytest

import registry_imports  # noqa: F401  (imported for its registrations)
from official_lite.common import errors
from official_lite.config import gin_config, parsing

STEPS, EPOCHS = "trainer.train_steps=7", "trainer.train_epochs=3"


def _trainer(**options):
    flags = parsing.ParseConfigOptions(experiment="vision/digits_mlp", **options)
    return parsing.ExperimentParser(flags).parse().trainer


@pytest.mark.parametrize("given", [[STEPS, EPOCHS], [EPOCHS, STEPS]])
def test_both_in_one_source_are_refused_with_what_each_would_mean(given) -> None:
    with pytest.raises(errors.ConfigValueError, match="--set has both") as caught:
        _trainer(set=given)
    assert "`trainer.train_steps` (7 steps)" in str(caught.value)
    assert "`trainer.train_epochs` (3 epochs)" in str(caught.value)
    with pytest.raises(errors.ConfigValueError, match="`train_steps` is 7 and `train_epochs` is 3"):
        _trainer(params_override=",".join(given))
    gin_config.parse_gin([], [f"trainer/params.{one.partition('.')[2]}" for one in given])
    with pytest.raises(errors.ConfigValueError, match="gin has both"):
        _trainer()


def test_order_within_a_source_does_not_matter(tmp_path: pathlib.Path) -> None:
    rate = "trainer.optimizer_config.learning_rate"
    given = [f"{rate}.constant.learning_rate=0.5", f"{rate}.type=constant", "trainer.hooks=[a, b]"]
    given += ["trainer.hooks[1].seconds=3", "trainer.hooks[1].name=c", "task.name=010"]
    trainers = [_trainer(set=given), _trainer(set=given[::-1])]
    assert trainers[0] == trainers[1]
    assert trainers[0].optimizer_config.learning_rate.get().learning_rate == 0.5
    assert trainers[0].hooks[0] == "a"
    assert trainers[0].hooks[1].as_dict() == {"name": "c", "seconds": 3}
    for contradiction in (["task.name=a", "task.name.x=1"], ["task.name.x=1", "task.name=a"]):
        with pytest.raises(errors.ConfigValueError, match="also a part of it"):
            _trainer(set=contradiction)


def test_later_source_counts_and_the_log_says_what_it_replaces(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="absl")
    file = tmp_path / "my.yaml"
    file.write_text("trainer: {train_epochs: 3}")
    trainer = _trainer(config_file=[str(file)], set=[STEPS, "trainer.validate_every_epochs=1"])
    assert (trainer.train_steps, trainer.train_epochs) == (7, None)
    assert [record.message for record in caplog.records] == [
        f"{file}: `trainer.train_epochs` (3 epochs) replaces `trainer.train_steps` (600 steps).",
        "--set: `trainer.train_steps` (7 steps) replaces `trainer.train_epochs` (3 epochs).",
        "--set: `trainer.validate_every_epochs` (1 epoch) replaces "
        "`trainer.validation_interval` (300 steps).",
    ]


def test_what_is_set_to_null_by_name_is_neither_refused_nor_told(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="absl")
    file = tmp_path / "params.yaml"
    file.write_text("trainer: {train_steps: 7, train_epochs: null}")
    assert _trainer(config_file=[str(file)]).train_steps == 7
    assert _trainer(set=["trainer.train_epochs=null", STEPS]).train_steps == 7
    assert not caplog.records
