import pkgutil
import typing

import pytest

from official_lite import telemetry
from official_lite.common import errors
from official_lite.core import writer_factory


class Pager(telemetry.Writer):
    def __init__(self, run, number="112"):
        self.run, self.number = run, number
        self.records = []

    def write(self, record):
        self.records.append(record)


@pytest.fixture
def run(tmp_path):
    return telemetry.RunInfo(model_dir=str(tmp_path), total_steps=10, config={})


def test_registered_writer_is_made_from_the_run_and_its_arguments(run):
    writer_factory.register_writer("test/pager")(Pager)
    entries = ["test/pager", {"name": "test/pager", "number": "911"}]
    writers = [factory(run) for factory in writer_factory.find_writers(entries)]
    assert [writer.number for writer in writers] == ["112", "911"]
    assert writers[0].run is run


def test_every_shipped_name_has_its_writer(run):
    factories = writer_factory.find_writers(["console", "jsonl", "csv", "mlflow", "wandb"])
    assert len(factories) == 5
    assert isinstance(factories[1](run), telemetry.JsonLinesWriter)


def test_writer_in_the_background_gets_every_record(run):
    writer_factory.register_writer("test/pager")(Pager)
    (factory,) = writer_factory.find_writers([{"name": "test/pager", "async": True}])
    writer = factory(run)
    assert isinstance(writer, telemetry.AsyncWriter)
    writer.close()


def test_event_files_are_the_controllers_affair():
    assert writer_factory.find_writers(["tensorboard"]) == []


def test_wrong_name_is_refused_with_the_nearest():
    with pytest.raises(errors.ConfigError, match="jsonl"):
        writer_factory.find_writers(["jsonlines"])


def test_event_files_take_no_arguments():
    assert writer_factory.find_writers([{"name": "tensorboard"}]) == []
    with pytest.raises(errors.ConfigError, match=r"'tensorboard' takes no arguments.*`async`"):
        writer_factory.find_writers([{"name": "tensorboard", "async": True}])


def test_every_name_belongs_to_a_writer_or_a_function_that_makes_one():
    places = [place for place in writer_factory._WRITERS.values() if isinstance(place, str)]
    assert len(places) >= 6
    for found in map(pkgutil.resolve_name, places):
        made = found if isinstance(found, type) else typing.get_type_hints(found)["return"]
        assert issubclass(made, telemetry.Writer)


def test_name_of_the_event_files_is_taken():
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


def test_writers_are_closed_when_a_later_one_cannot_be_made(run):
    names = []

    def fails(run):
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        writer_factory.create_writers([lambda run: Closed(names, "first"), fails], run)
    assert names == ["first"]


def test_error_while_closing_one_writer_leaves_none_open():
    names = []
    writers = [Closed(names, "first"), Closed(names, "second", OSError("disk is gone"))]
    with pytest.raises(OSError, match="disk is gone"):
        writer_factory.close_all(writers)
    assert sorted(names) == ["first", "second"]
