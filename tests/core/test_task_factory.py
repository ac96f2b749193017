import collections
import pickle

import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import base_task, exp_factory, task_factory


class Config:
    BUILDER = None


class SpecialConfig(Config): ...


class Task:
    def __init__(self, config, logging_dir=None):
        self.config, self.logging_dir = config, logging_dir


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(task_factory, "_REGISTERED_TASK_CLS", {})


def test_get_task_creates_the_registered_task_from_its_config():
    assert task_factory.register_task_cls(Config)(Task) is Task
    task = task_factory.get_task(config := Config(), logging_dir="logs")
    assert (type(task), task.config, task.logging_dir) == (Task, config, "logs")


def test_config_subclass_uses_the_task_of_its_nearest_registered_base_class():
    task_factory.register_task_cls(Config)(Task)
    assert task_factory.get_task_cls(SpecialConfig) is Task
    task_factory.register_task_cls(SpecialConfig)(dict)
    assert task_factory.get_task_cls(SpecialConfig) is dict


def test_task_class_registered_by_name_is_imported_only_when_it_is_needed():
    task_factory.register_task_cls(Config, "no_such_package.tasks:Task")
    with pytest.raises(errors.UnknownNameError, match="no_such_package"):
        task_factory.get_task_cls(Config)
    task_factory.register_task_cls(SpecialConfig, "collections:OrderedDict")
    assert task_factory.get_task_cls(SpecialConfig) is collections.OrderedDict


def test_config_builder_takes_precedence_over_the_registered_task():
    task_factory.register_task_cls(Config)(Task)
    config = Config()
    config.BUILDER = lambda config, **kwargs: ("built", config, kwargs)
    assert task_factory.get_task(config, logging_dir="x") == ("built", config, {"logging_dir": "x"})


def test_registering_a_second_task_for_a_config_raises():
    task_factory.register_task_cls(Config)(Task)
    with pytest.raises(KeyError, match="already registered"):
        task_factory.register_task_cls(Config, "another:Task")


def test_task_class_whose_constructor_takes_no_arguments_raises_before_it_is_called():
    class Narrow:
        def __init__(self):
            raise AssertionError

    task_factory.register_task_cls(Config)(Narrow)
    with pytest.raises(
        errors.ConfigTypeError, match=r"`Narrow\(params, logging_dir=…\)`.*does not"
    ):
        task_factory.get_task(Config(), logging_dir="logs")


def test_error_for_a_config_without_a_task_says_how_to_register_a_task():
    task_factory.register_task_cls(SpecialConfig)(Task)
    wanted = r"\.Config`\. .*register_task_cls\(Config\).*--import"
    with pytest.raises(LookupError, match=wanted):
        task_factory.get_task(Config())


@task_factory.register_experiment("words/a")
@task_factory.register_experiment("words/b")
class WordsTask(base_task.Task):
    """Counts words."""

    def build_inputs(self, params, input_context=None):
        return tf.data.Dataset.range(2)


REGISTERED = dict(task_factory._REGISTERED_TASK_CLS)


def test_registered_experiment_has_the_task_and_the_fields_of_a_task_config(monkeypatch):
    monkeypatch.setattr(task_factory, "_REGISTERED_TASK_CLS", REGISTERED)
    configs = [exp_factory.get_exp_config(f"words/{letter}") for letter in "ab"]
    assert [type(task_factory.get_task(config.task)) for config in configs] == [WordsTask] * 2
    task = configs[0].task
    assert (task.train_data.is_training, task.validation_data.drop_remainder) == (True, False)
    assert exp_factory.get_origin("words/a") == __name__
    with pytest.raises(errors.ConfigError, match="init_checkpoint"):
        configs[0].override({"task": {"init_checkpont": "x"}})


def test_config_of_a_registered_experiment_can_be_sent_to_another_process():
    config = exp_factory.get_exp_config("words/a")
    received = pickle.loads(pickle.dumps(config))
    assert type(received.task) is type(config.task)
    assert received.as_dict() == config.as_dict()


def test_registering_an_experiment_name_for_a_second_task_class_raises():
    task_factory.register_experiment("words/a")(WordsTask)

    class OtherTask(WordsTask):
        pass

    with pytest.raises(KeyError, match=r"already registered as .*WordsTask"):
        task_factory.register_experiment("words/a")(OtherTask)
