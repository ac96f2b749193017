import textwrap

import libcst as cst
import pytest

from official_lite.porting import names
from official_lite.porting.symbol_map import Destinations


def _renamed(text: str) -> str:
    module = cst.parse_module(textwrap.dedent(text).lstrip("\n"))
    return names.rename(module, Destinations()).code


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import tensorflow as tf, tf_keras", "import keras\nimport tensorflow as tf"),
        ("import tf_keras as keras", "import keras"),
        ("from tf_keras import layers", "from keras import layers"),
        ("from tensorflow import keras", "import keras"),
        ("from tensorflow.keras.layers import Dense as D", "from keras.layers import Dense as D"),
        ("import tensorflow as tf\nkeras = tf.keras", "import tensorflow as tf\nimport keras"),
        ("import orbit", "from official_lite import orbit"),
        ("from orbit.utils import common", "from official_lite.orbit.utils import common"),
        ("from official.core import base_task", "from official_lite.core import base_task"),
        ("import official.core.base_task as b", "import official_lite.core.base_task as b"),
        (
            "from keras.layers.experimental import preprocessing",
            "from keras import layers as preprocessing",
        ),
    ],
)
def test_imports(before: str, after: str) -> None:
    assert _renamed(before) == after


def test_import_of_what_is_not_here_stays() -> None:
    before = "from official.vision.modeling import backbones"
    assert _renamed(before) == before


def test_one_import_of_both_is_parted() -> None:
    after = _renamed("from official.core import base_task, not_there  # Both.")
    assert after == (
        "from official_lite.core import base_task\nfrom official.core import not_there  # Both."
    )


def test_names_follow_the_imports_and_keep_their_layout() -> None:
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


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("tf.losses.MSE", "keras.losses.mean_squared_error"),
        ("tf.keras.losses.Reduction.SUM", '"sum"'),
        ("tf.keras.optimizers.legacy.SGD", "keras.optimizers.SGD"),
        ("tf.keras.backend.mean", "keras.ops.mean"),
        ("tf.nn.relu", "tf.nn.relu"),
    ],
)
def test_symbols(before: str, after: str) -> None:
    *_, last = _renamed(f"import tensorflow as tf\nx = {before}").splitlines()
    assert last == f"x = {after}"


def test_what_a_function_binds_itself_is_not_an_import() -> None:
    before = "from keras import optimizers\ndef f(optimizers):\n  return optimizers.legacy\n"
    assert _renamed(before) == before
