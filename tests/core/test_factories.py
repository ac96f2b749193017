import pkgutil
import typing

import gin
import keras
import pytest

from official_lite import orbit, telemetry
from official_lite.common import errors, plugins
from official_lite.core import base_trainer, hook_factory, trainer_factory, writer_factory


class InfoHook(orbit.Hook):
    def __init__(self, text="hello"):
        self.text = text


def test_registered_hook_is_created_with_the_arguments_of_the_config():
    hook_factory.register_hook("test/info")(InfoHook)
    factories = hook_factory.find_hooks(["test/info", {"name": "test/info", "text": "bye"}])
    assert [factory().text for factory in factories] == ["hello", "bye"]


def test_hook_class_is_found_by_the_path_of_its_file(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from official_lite import orbit\nclass Mine(orbit.Hook):\n    every_n_steps = 7\n"
    )
    (factory,) = hook_factory.find_hooks(["{workspace}/mine.py"], workspace=str(tmp_path))
    assert factory().every_n_steps == 7


def test_every_built_in_hook_name_resolves_to_a_hook_class():
    shipped = {name: spec for name, spec in hook_factory._HOOKS.items() if isinstance(spec, str)}
    assert "early_stopping" in shipped
    for spec in shipped.values():
        assert issubclass(plugins.resolve(spec), orbit.Hook)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("early_stoping", "early_stopping"),
        ({"name": "early_stopping", "metrc": "loss"}, "`metric`"),
        ({"name": "early_stopping"}, "missing a required argument"),
        (
            {"name": "early_stopping", "metric": "loss", "patience": 3, "min_delta": "5%"},
            "`min_delta` .* must be float; got '5%'",
        ),
        ({"metric": "loss"}, "must be a name"),
        (3, "must be a name"),
    ],
)
def test_invalid_hook_entry_raises_before_any_hook_is_created(entry, message):
    with pytest.raises(errors.ConfigError, match=message):
        hook_factory.find_hooks([entry])


class Pager(telemetry.Writer):
    def __init__(self, run, number="112"):
        self.run, self.number = run, number
        self.records = []

    def write(self, record):
        self.records.append(record)


@pytest.fixture
def run(tmp_path):
    return telemetry.RunInfo(model_dir=str(tmp_path), total_steps=10, config={})


def test_registered_writer_is_created_from_the_run_info_and_its_arguments(run):
    writer_factory.register_writer("test/pager")(Pager)
    entries = ["test/pager", {"name": "test/pager", "number": "911"}]
    writers = [factory(run) for factory in writer_factory.find_writers(entries)]
    assert [writer.number for writer in writers] == ["112", "911"]
    assert writers[0].run is run


def test_writer_entry_with_async_creates_an_async_writer(run):
    writer_factory.register_writer("test/pager")(Pager)
    (factory,) = writer_factory.find_writers([{"name": "test/pager", "async": True}])
    writer = factory(run)
    assert isinstance(writer, telemetry.AsyncWriter)
    writer.close()


def test_tensorboard_writer_entry_with_arguments_raises():
    assert writer_factory.find_writers([{"name": "tensorboard"}]) == []
    with pytest.raises(errors.ConfigError, match=r"'tensorboard' takes no arguments.*`async`"):
        writer_factory.find_writers([{"name": "tensorboard", "async": True}])


def test_every_built_in_writer_name_resolves_to_a_writer():
    places = [place for place in writer_factory._WRITERS.values() if isinstance(place, str)]
    assert len(places) >= 6
    for found in map(pkgutil.resolve_name, places):
        made = found if isinstance(found, type) else typing.get_type_hints(found)["return"]
        assert issubclass(made, telemetry.Writer)


def test_writer_name_tensorboard_is_reserved_and_is_suggested_for_misspellings():
    with pytest.raises(errors.ConfigError, match="'tensorboard' is already registered"):
        writer_factory.register_writer("tensorboard")(Pager)
    with pytest.raises(errors.ConfigError, match="Did you mean `tensorboard`"):
        writer_factory.find_writers(["tensorbord"])


class Closed(telemetry.Writer):
    def __init__(self, names, name, error=None):
        self.names, self.name, self.error = names, name, error

    def write(self, record):
        pass

    def close(self):
        self.names.append(self.name)
        if self.error:
            raise self.error


def test_writers_are_closed_if_a_later_writer_cannot_be_created(run):
    names = []

    def fails(run):
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        writer_factory.create_writers([lambda run: Closed(names, "first"), fails], run)
    assert names == ["first"]


def test_all_writers_are_closed_even_if_closing_one_writer_raises():
    names = []
    writers = [Closed(names, "first"), Closed(names, "second", OSError("disk is gone"))]
    with pytest.raises(OSError, match="disk is gone"):
        writer_factory.close_all(writers)
    assert sorted(names) == ["first", "second"]


@gin.configurable(module="tests")
class GinTrainer(base_trainer.Trainer):
    def __init__(self, *args, extra=1, **kwargs):
        super().__init__(*args, **kwargs)
        self.extra = extra


def test_create_trainer_builds_the_default_trainer_and_the_configured_optimizer(
    experiment, make_task
) -> None:
    params = experiment()
    trainer = trainer_factory.create_trainer(params, make_task(params), train=True, evaluate=False)
    assert type(trainer) is base_trainer.Trainer
    assert isinstance(trainer.optimizer, keras.optimizers.SGD)


def test_gin_bindings_select_the_trainer_class_and_its_arguments(experiment, make_task) -> None:
    gin.parse_config("create_trainer.trainer_cls = @GinTrainer\nGinTrainer.extra = 5")
    params = experiment()
    trainer = trainer_factory.create_trainer(params, make_task(params), train=True, evaluate=True)
    assert isinstance(trainer, base_trainer.Trainer)
    assert trainer.extra == 5


def test_task_create_optimizer_may_omit_dp_config_unless_differential_privacy_is_set(
    experiment, make_task
) -> None:
    params = experiment()
    task = make_task(params)
    task.create_optimizer = lambda optimizer_config, runtime_config=None: keras.optimizers.Adam()
    assert isinstance(trainer_factory.create_optimizer(task, params), keras.optimizers.Adam)
    params.task.differential_privacy_config = {"clipping_norm": 1.0}
    with pytest.raises(errors.ConfigValueError, match="dp_config"):
        trainer_factory.create_optimizer(task, params)


def test_create_trainer_uses_the_model_and_optimizer_passed_to_it(experiment, make_task) -> None:
    params = experiment()
    task = make_task(params)
    model, optimizer = task.build_model(), keras.optimizers.Adam()
    trainer = trainer_factory.create_trainer(
        params, task, train=True, evaluate=False, model=model, optimizer=optimizer
    )
    assert trainer.model is model
    assert isinstance(trainer.optimizer, keras.optimizers.Adam)


def test_trainer_class_is_loaded_from_a_file_in_the_workspace(experiment, tmp_path) -> None:
    (tmp_path / "mine.py").write_text(
        "from official_lite.core import base_trainer\nclass Mine(base_trainer.Trainer): ...\n"
    )
    params = experiment(trainer={"name": "{workspace}/mine.py:Mine"}, workspace=str(tmp_path))
    assert trainer_factory.get_trainer_cls(params).__name__ == "Mine"
