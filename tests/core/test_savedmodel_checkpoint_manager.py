import pathlib

import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import savedmodel_checkpoint_manager as manager_lib


class Scaler(tf.Module):
    def __init__(self):
        super().__init__()
        self.scale = tf.Variable(2.0)

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32)])
    def serve(self, x):
        return {"y": self.scale * x}

    @property
    def saved_model_signatures(self):
        return {"serving_default": self.serve}


def make_manager(tmp_path, modules=None, max_to_keep=2, **kwargs):
    return manager_lib.SavedModelCheckpointManager(
        tf.train.Checkpoint(v=tf.Variable(1.0)),
        str(tmp_path),
        max_to_keep,
        modules_to_export={"scaler": Scaler()} if modules is None else modules,
        **kwargs,
    )


def test_every_checkpoint_is_saved_with_a_saved_model(tmp_path):
    manager = make_manager(tmp_path)
    path = manager.save(checkpoint_number=7)
    assert manager.latest_savedmodel == manager_lib.make_saved_modules_directory_name(path)
    assert manager.get_savedmodel_number_from_path(manager.latest_savedmodel) == 7
    served = tf.saved_model.load(f"{manager.latest_savedmodel}/scaler")
    assert served.signatures["serving_default"](tf.constant(3.0))["y"] == 6.0


def test_saved_models_are_removed_with_their_checkpoints_and_listed_by_step(tmp_path):
    manager = make_manager(tmp_path)
    for number in (8, 9, 10):
        manager.save(checkpoint_number=number)
    names = [pathlib.Path(path).name for path in manager.get_existing_savedmodels()]
    assert names == ["ckpt-9_saved_modules", "ckpt-10_saved_modules"]
    assert manager.savedmodels == make_manager(tmp_path).savedmodels


def test_iterator_yields_saved_models_in_step_order(tmp_path):
    manager = make_manager(tmp_path)
    for number in (9, 10):
        manager.save(checkpoint_number=number)
    found = list(manager.savedmodels_iterator(timeout=1.5))
    assert found == manager.savedmodels


def test_timeout_fn_decides_when_the_savedmodels_iterator_stops(tmp_path):
    answers = iter([False, False, True])
    manager = make_manager(tmp_path)
    assert not list(manager.savedmodels_iterator(timeout=0.0, timeout_fn=lambda: next(answers)))
    assert next(answers, None) is None


def test_incomplete_saved_model_of_an_earlier_export_is_replaced(tmp_path):
    for suffix in ("_saved_modules_temp", "_saved_modules"):
        (tmp_path / f"ckpt-1{suffix}").mkdir()
        (tmp_path / f"ckpt-1{suffix}" / "half").touch()
    manager = make_manager(tmp_path)
    manager.save(checkpoint_number=1)
    assert [path.name for path in pathlib.Path(manager.latest_savedmodel).iterdir()] == ["scaler"]
    assert not (tmp_path / "ckpt-1_saved_modules_temp").exists()


def test_modules_without_signatures_are_not_exported(tmp_path):
    manager = make_manager(tmp_path, modules={"plain": tf.Module()})
    assert manager.save() is not None
    assert manager.savedmodels == []


@pytest.mark.parametrize("name", ["..", "a/b"])
def test_exported_module_name_that_is_not_a_directory_name_raises(tmp_path, name):
    with pytest.raises(errors.ConfigValueError, match="not a valid name for an exported module"):
        make_manager(tmp_path, modules={name: Scaler()})


def test_saved_model_whose_export_was_killed_is_written_when_its_checkpoint_is_restored(tmp_path):
    for number in (1, 2):
        path = make_manager(tmp_path).save(checkpoint_number=number)
    directory = pathlib.Path(manager_lib.make_saved_modules_directory_name(path))
    directory.rename(f"{directory}_temp")
    (tmp_path / "ckpt-1_saved_modules_temp").mkdir()
    manager = make_manager(tmp_path)
    manager.restore_or_initialize()
    assert manager.latest_savedmodel == str(directory)
    assert not list(tmp_path.glob("*_temp"))


def test_saved_models_of_checkpoints_that_are_kept_permanently_remain(tmp_path):
    manager = make_manager(tmp_path, max_to_keep=1, keep_checkpoint_every_n_hours=1e-9)
    for number in (1, 2, 3):
        manager.save(checkpoint_number=number)
    names = [pathlib.Path(path).name for path in manager.savedmodels]
    assert names == [f"ckpt-{number}_saved_modules" for number in (1, 2, 3)]
