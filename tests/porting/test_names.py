import textwrap

import libcst as cst

from official_lite.porting import names
from official_lite.porting.symbol_map import Destinations


def _renamed(text: str) -> str:
    module = cst.parse_module(textwrap.dedent(text).lstrip("\n"))
    return names.rename(module, Destinations()).code


IMPORTS = {
    # This module is not part of official_lite.
    "from official.vision.modeling import backbones": (
        "from official.vision.modeling import backbones"
    ),
    "import tensorflow as tf, tf_keras": "import keras\nimport tensorflow as tf",
    "import tf_keras as keras": "import keras",
    "from tf_keras import layers": "from keras import layers",
    "from tensorflow import keras": "import keras",
    "from tensorflow.keras.layers import Dense as D": "from keras.layers import Dense as D",
    "import tensorflow as tf\nkeras = tf.keras": "import tensorflow as tf\nimport keras",
    "import orbit": "from official_lite import orbit",
    "from orbit.utils import common": "from official_lite.orbit.utils import common",
    "from official.core import base_task": "from official_lite.core import base_task",
    "import official.core.base_task as b": "import official_lite.core.base_task as b",
    "from keras.layers.experimental import preprocessing": (
        "from keras import layers as preprocessing"
    ),
}


def test_imports_from_the_model_garden_and_keras_2_are_renamed() -> None:
    assert {old: _renamed(old) for old in IMPORTS} == IMPORTS


def test_import_of_ported_and_unported_names_is_split() -> None:
    after = _renamed("from official.core import base_task, not_there  # Both.")
    assert after == (
        "from official_lite.core import base_task\nfrom official.core import not_there  # Both."
    )


def test_names_are_renamed_with_their_imports_and_keep_their_formatting() -> None:
    after = _renamed(
        '''
        """Doc."""
        # Above.
        import tensorflow as tf

        layers = tf.keras.layers


        def f(x, y = ( 1,)):  # Odd.
          return tf.keras.layers.Dense( 3 )(x), layers.experimental.preprocessing.Resizing(1, 1)
        '''
    )
    assert after == textwrap.dedent(
        '''\
        """Doc."""
        # Above.
        import keras
        import tensorflow as tf

        layers = keras.layers


        def f(x, y = ( 1,)):  # Odd.
          return keras.layers.Dense( 3 )(x), layers.Resizing(1, 1)
        '''
    )


SYMBOLS = {
    "tf.losses.MSE": "keras.losses.mean_squared_error",
    "tf.keras.losses.Reduction.SUM": '"sum"',
    "tf.keras.optimizers.legacy.SGD": "keras.optimizers.SGD",
    "tf.keras.backend.mean": "keras.ops.mean",
    "tf.nn.relu": "tf.nn.relu",
}


def test_tf_keras_symbols_become_keras_symbols() -> None:
    head = "import tensorflow as tf\nx = "
    assert {old: _renamed(head + old).splitlines()[-1] for old in SYMBOLS} == {
        old: f"x = {new}" for old, new in SYMBOLS.items()
    }


def test_local_variable_that_shadows_an_import_is_not_renamed() -> None:
    for binding in ("(optimizers):", "(*, optimizers=1):", "():\n  optimizers, b = 1, 2"):
        before = f"from keras import optimizers\ndef f{binding}\n  return optimizers.legacy\n"
        assert _renamed(before) == before
    loop = (
        "from keras import optimizers\ndef f(a):\n  for optimizers in a:\n    optimizers.legacy\n"
    )
    assert _renamed(loop) == loop
