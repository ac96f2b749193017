import libcst as cst

from official_lite.porting import idioms


def _rewritten(text: str) -> str:
    return idioms.rewrite(cst.parse_module("import keras\n" + text)).code.removeprefix(
        "import keras\n"
    )


IDIOMS = {
    "m.reset_states()": "m.reset_state()",
    "self.model.reset_states()": "self.model.reset_states()",
    "def reset_states(self): self.model.reset_states()": (
        "def reset_state(self): self.model.reset_state()"
    ),
    "x.get_shape()": "x.shape",
    "x.get_shape().as_list()[1:]": "list(x.shape)[1:]",
    "x.get_shape().as_list()[-1]": "x.shape[-1]",
    "len(x.shape.as_list())": "len(x.shape)",
    "input_shape.as_list()": "list(input_shape)",
    "if not x.shape.is_fully_defined():\n  y": "if not (None not in x.shape):\n  y",
    "x.shape.rank - 1": "len(x.shape) - 1",
    "x.shape.rank is None": "x.shape.rank is None",
    "self.optimizer.lr": "self.optimizer.learning_rate",
    "self.add_weight('kernel', shape=s)": "self.add_weight(name='kernel', shape=s)",
    "self.add_weight('w', s, 'float32')": "self.add_weight(name='w', shape=s, dtype='float32')",
    "self.add_weight(experimental_autocast=False)": "self.add_weight(autocast=False)",
    "keras.optimizers.Adam(lr=0.1)": "keras.optimizers.Adam(learning_rate=0.1)",
    "keras.optimizers.SGD(0.1, jit_compile=True)": "keras.optimizers.SGD(0.1)",
    "keras.activations.serialize(a, use_legacy_format=True)": "keras.activations.serialize(a)",
    "keras.backend.int_shape(x)": "tuple(x.shape)",
    "keras.backend.learning_phase()": "False",
    "keras.backend.set_value(v, 1)": "v.assign(1)",
    "keras.backend.update_add(v, 1)": "v.assign_add(1)",
    "keras.layers.BatchNormalization(fused=True, renorm=False)": (
        "keras.layers.BatchNormalization()"
    ),
    "keras.layers.BatchNormalization(renorm=True)": "keras.layers.BatchNormalization(renorm=True)",
    "keras.layers.BatchNormalization(\n  fused=True,\n  axis=1,\n)": (
        "keras.layers.BatchNormalization(\n  axis=1,\n)"
    ),
    "keras.optimizers.SGD(0.1, decay=0.0)": "keras.optimizers.SGD(0.1)",
    "keras.layers.experimental.SyncBatchNormalization(axis=1)": (
        "keras.layers.BatchNormalization(synchronized=True, axis=1)"
    ),
    "v.read_value()": "keras.ops.convert_to_tensor(v)",
    "x.shape[1:] == [2, n]": "x.shape[1:] == (2, n)",
    "self.assertEqual(x.shape, [3])": "self.assertEqual(x.shape, (3,))",
    "self.assertEqual(sizes, [3])": "self.assertEqual(sizes, [3])",
    "keras.layers.MaxPool2D(2, padding='SAME')": "keras.layers.MaxPool2D(2, padding='same')",
    "tf.nn.max_pool2d(x, 2, 1, padding='SAME')": "tf.nn.max_pool2d(x, 2, 1, padding='SAME')",
    "optimizer.get_scaled_loss(loss)": "optimizer.scale_loss(loss)",
}


def test_keras_2_idioms_become_keras_3_idioms() -> None:
    assert {old: _rewritten(old) for old in IDIOMS} == IDIOMS


def test_calls_that_unscale_gradients_are_removed() -> None:
    after = _rewritten(
        "def step(optimizer, loss):\n"
        "  # Before.\n"
        "  if isinstance(optimizer, Scaled):\n"
        "    grads = optimizer.get_unscaled_gradients(grads)\n"
        "  optimizer.apply_gradients(zip(optimizer.get_unscaled_gradients(g), v))\n"
    )
    assert after == ("def step(optimizer, loss):\n  optimizer.apply_gradients(zip(g, v))\n")


def test_model_compiled_metrics_in_a_condition_becomes_model_compiled() -> None:
    after = _rewritten("if metrics:\n  a()\nelif model.compiled_metrics:\n  b()\n")
    assert after == "if metrics:\n  a()\nelif model.compiled:\n  b()\n"


def test_reference_to_sync_batch_normalization_becomes_a_functools_partial() -> None:
    before = "import a\nfrom keras import layers\nb = layers.experimental.SyncBatchNormalization\n"
    assert idioms.rewrite(cst.parse_module(before)).code == (
        "import functools\nimport keras\nimport a\nfrom keras import layers\n"
        "b = functools.partial(keras.layers.BatchNormalization, synchronized=True)\n"
    )


def test_keras_import_is_added_if_a_rewritten_call_needs_it() -> None:
    after = idioms.rewrite(cst.parse_module("from keras import backend as K\nK.flatten(x)")).code
    assert after == "import keras\nfrom keras import backend as K\nkeras.ops.reshape(x, [-1])"


def test_save_in_tf_format_becomes_tf_saved_model_save() -> None:
    before = "import tensorflow as tf\nm.save(d, include_optimizer=False, save_format='tf')"
    after = "import tensorflow as tf\ntf.saved_model.save(m, d)"
    assert idioms.rewrite(cst.parse_module(before)).code == after
    other = "m.save(d, save_format='h5')"
    assert _rewritten(other) == other


LAYER_NAMES = {
    "layers.Dense(3, name='a/b')": "layers.Dense(3, name='a_b')",
    "Block(name='layer/%d' % i)": "Block(name='layer_%d' % i)",
    "Block(name=f'layer/{i / 2}')": "Block(name=f'layer_{i / 2}')",
    "Block(name='l/{}'.format(i))": "Block(name='l_{}'.format(i))",
    "Block(name=name + '/b')": "Block(name=name + '_b')",
    "super().__init__(name='a/b')": "super().__init__(name='a_b')",
    "self.add_weight(name='a/b')": "self.add_weight(name='a_b')",
    "model.get_layer('a/b')": "model.get_layer('a_b')",
    "self._norm_cls(name='a/b')": "self._norm_cls(name='a_b')",
    "n = p + '/b'\nlayers.Dense(3, name=n)": "n = p + '_b'\nlayers.Dense(3, name=n)",
    "def make(name):\n  return Dense(3, name=name)\nmake(name='a/b')": (
        "def make(name):\n  return Dense(3, name=name)\nmake(name='a_b')"
    ),
}


def test_slash_in_the_name_of_a_layer_becomes_an_underscore() -> None:
    assert {old: _rewritten(old) for old in LAYER_NAMES} == LAYER_NAMES


OTHER_NAMES = [
    "import tensorflow as tf\ntf.Variable(1, name='a/b')",
    "keras.metrics.Mean(name='a/b')",
    "cfg.TaskConfig(name='a/b')",
    "open_file(name='a/b')",
    "n = 'a/b'\nopen_file(name=n)",
    "def make(name):\n  return open_file(name=name)\nmake(name='a/b')",
    "layers.Dense(3, kernel='a/b')",
]


def test_slashes_outside_of_layer_names_are_kept() -> None:
    assert [_rewritten(text) for text in OTHER_NAMES] == OTHER_NAMES
