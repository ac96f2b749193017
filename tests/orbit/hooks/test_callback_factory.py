import threading

import keras
import pytest

from official_lite.common import errors
from official_lite.orbit import hooks


class Epochs(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        pass


class Batches(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        pass


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"callback": "CSVLoger", "filename": "a"}, "Did you mean `CSVLogger`"),
        ({"callback": "CSVLogger", "file_name": "a"}, "Did you mean `filename`"),
        ({"callback": "CSVLogger"}, "can't be created"),
        ({"callback": "json:dumps", "x": 1}, "json:dumps"),
        ({"callback": threading.Event()}, "got a Event"),
    ],
)
def test_what_is_no_callback_is_refused(arguments, message):
    with pytest.raises(errors.ConfigError, match=message):
        hooks.KerasCallback(**arguments)


def test_callback_without_batches_cuts_no_loop():
    assert hooks.KerasCallback(Epochs()).every_n_steps == 0
    assert hooks.KerasCallback(Batches()).every_n_steps == 1
    assert hooks.KerasCallback(Batches(), every_n_steps=50).every_n_steps == 50
