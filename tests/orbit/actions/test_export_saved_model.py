import keras
import pytest
import tensorflow as tf

from official_lite.orbit import actions
from official_lite.orbit.actions import export_saved_model


class Model(tf.Module):
    def __init__(self):
        self.value = tf.Variable(0)

    @tf.function(input_signature=[])
    def __call__(self):
        return self.value.read_value()


def make_exports(base, ids):
    for number in ids:
        (base.parent / f"{base.name}-{number}").mkdir(parents=True)


def remaining(base):
    return sorted(int(path.name.split("-")[1]) for path in base.parent.iterdir())


@pytest.mark.parametrize(
    ("max_to_keep", "kept"), [(2, [9, 10]), (0, []), (5, [1, 9, 10]), (-1, [1, 9, 10])]
)
def test_export_clean_up_keeps_the_latest_exports_up_to_max_to_keep(tmp_path, max_to_keep, kept):
    base = tmp_path / "model"
    make_exports(base, [9, 1, 10])
    actions.ExportFileManager(str(base), max_to_keep).clean_up()
    assert remaining(base) == kept


def test_export_counter_continues_after_a_restart(tmp_path):
    base = tmp_path / "model"
    make_exports(base, [3])
    manager = actions.ExportFileManager(str(base))
    assert [manager.next_name() for _ in range(2)] == [f"{base}-4", f"{base}-5"]


def test_export_clean_up_removes_only_export_directories(tmp_path):
    base = tmp_path / "model"
    make_exports(base, [1])
    (tmp_path / "model-1-notes").mkdir()
    manager = actions.ExportFileManager(str(base), max_to_keep=0)
    assert manager.managed_files == [f"{base}-1"]
    manager.clean_up()
    assert [path.name for path in tmp_path.iterdir()] == ["model-1-notes"]


def test_export_clean_up_removes_only_the_configured_subdirectory(tmp_path):
    base = tmp_path / "model"
    manager = actions.ExportFileManager(
        str(base), max_to_keep=0, next_id_fn=lambda: 7, subdirectory="saved"
    )
    assert manager.next_name() == f"{base}-7/saved"
    (tmp_path / "model-7" / "saved").mkdir(parents=True)
    manager.clean_up()
    assert list((tmp_path / "model-7").iterdir()) == []


def test_export_contains_the_current_variable_values(tmp_path):
    model = Model()
    manager = actions.ExportFileManager(str(tmp_path / "model"), max_to_keep=1)
    export = actions.ExportSavedModel(model, manager, model.__call__)
    for value in (3, 5):
        model.value.assign(value)
        export({})
    [path] = manager.managed_files
    assert tf.saved_model.load(path)().numpy() == 5


def test_safe_normpath_keeps_the_double_slash_after_a_gs_scheme():
    assert export_saved_model.safe_normpath("gs://bucket//a/../b") == "gs://bucket/b"


def test_only_the_export_of_the_chief_remains(tmp_path, two_replicas, monkeypatch):
    extended = type(two_replicas.extended)
    monkeypatch.setattr(extended, "should_checkpoint", property(lambda self: False))
    model = Model()
    with two_replicas.scope():
        # A plain module does not list the variables of a Keras model.
        model.network = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    manager = actions.ExportFileManager(str(tmp_path / "model"), max_to_keep=0)
    make_exports(tmp_path / "model", [3])
    actions.ExportSavedModel(model, manager, model.__call__)({})
    assert [path.name for path in tmp_path.iterdir()] == ["model-3"]


def test_next_export_removes_the_files_of_an_export_that_was_killed(tmp_path):
    (tmp_path / "model-1_temp" / "variables").mkdir(parents=True)
    manager = actions.ExportFileManager(str(tmp_path / "model"), next_id_fn=lambda: 2)
    model = Model()
    actions.ExportSavedModel(model, manager, model.__call__)({})
    assert [path.name for path in tmp_path.iterdir()] == ["model-2"]


def test_export_that_fails_leaves_no_directory_that_counts_as_an_export(tmp_path, monkeypatch):
    def save(model, path, *args):
        (tmp_path / path / "half").mkdir(parents=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(tf.saved_model, "save", save)
    manager = actions.ExportFileManager(str(tmp_path / "model"))
    export = actions.ExportSavedModel(Model(), manager, None)
    with pytest.raises(KeyboardInterrupt):
        export({})
    assert not list(tmp_path.iterdir())
