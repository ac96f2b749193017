import gin
import keras
import pytest

from official_lite.common import errors
from official_lite.core import base_trainer, trainer_factory


@gin.configurable(module="tests")
class GinTrainer(base_trainer.Trainer):
    def __init__(self, *args, extra=1, **kwargs):
        super().__init__(*args, **kwargs)
        self.extra = extra


def test_trainer_is_built_from_the_config(experiment, make_task) -> None:
    params = experiment()
    trainer = trainer_factory.create_trainer(params, make_task(params), train=True, evaluate=False)
    assert type(trainer) is base_trainer.Trainer
    assert isinstance(trainer.optimizer, keras.optimizers.SGD)


def test_gin_chooses_the_trainer_and_its_arguments(experiment, make_task) -> None:
    gin.parse_config("create_trainer.trainer_cls = @GinTrainer\nGinTrainer.extra = 5")
    params = experiment()
    trainer = trainer_factory.create_trainer(params, make_task(params), train=True, evaluate=True)
    assert isinstance(trainer, base_trainer.Trainer)
    assert trainer.extra == 5


def test_task_may_leave_dp_config_out_of_its_create_optimizer(experiment, make_task) -> None:
    params = experiment()
    task = make_task(params)
    task.create_optimizer = lambda optimizer_config, runtime_config=None: keras.optimizers.Adam()
    assert isinstance(trainer_factory.create_optimizer(task, params), keras.optimizers.Adam)
    params.task.differential_privacy_config = {"clipping_norm": 1.0}
    with pytest.raises(errors.ConfigValueError, match="dp_config"):
        trainer_factory.create_optimizer(task, params)


def test_model_and_optimizer_may_be_given(experiment, make_task) -> None:
    params = experiment()
    task = make_task(params)
    model, optimizer = task.build_model(), keras.optimizers.Adam()
    trainer = trainer_factory.create_trainer(
        params, task, train=True, evaluate=False, model=model, optimizer=optimizer
    )
    assert trainer.model is model
    assert isinstance(trainer.optimizer, keras.optimizers.Adam)


def test_trainer_may_be_in_a_file_of_the_workspace(experiment, tmp_path) -> None:
    (tmp_path / "mine.py").write_text(
        "from official_lite.core import base_trainer\nclass Mine(base_trainer.Trainer): ...\n"
    )
    params = experiment(trainer={"name": "{workspace}/mine.py:Mine"}, workspace=str(tmp_path))
    assert trainer_factory.get_trainer_cls(params).__name__ == "Mine"
