import libcst as cst
import pytest

from official_lite.porting import idioms


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("layers.Dense(3, name='a/b')", "layers.Dense(3, name='a_b')"),
        ("Block(name='layer/%d' % i)", "Block(name='layer_%d' % i)"),
        ("Block(name=f'layer/{i / 2}')", "Block(name=f'layer_{i / 2}')"),
        ("Block(name='l/{}'.format(i))", "Block(name='l_{}'.format(i))"),
        ("Block(name=name + '/b')", "Block(name=name + '_b')"),
        ("super().__init__(name='a/b')", "super().__init__(name='a_b')"),
        ("self.add_weight(name='a/b')", "self.add_weight(name='a_b')"),
        ("model.get_layer('a/b')", "model.get_layer('a_b')"),
        ("self._norm_cls(name='a/b')", "self._norm_cls(name='a_b')"),
        ("n = p + '/b'\nlayers.Dense(3, name=n)", "n = p + '_b'\nlayers.Dense(3, name=n)"),
        (
            "def make(name):\n  return Dense(3, name=name)\nmake(name='a/b')",
            "def make(name):\n  return Dense(3, name=name)\nmake(name='a_b')",
        ),
    ],
)
def test_slash_becomes_an_underscore(before: str, after: str) -> None:
    assert idioms.rewrite(cst.parse_module(before)).code == after


@pytest.mark.parametrize(
    "text",
    [
        "import tensorflow as tf\ntf.Variable(1, name='a/b')",
        "import keras\nkeras.metrics.Mean(name='a/b')",
        "cfg.TaskConfig(name='a/b')",
        "open_file(name='a/b')",
        "n = 'a/b'\nopen_file(name=n)",
        "def make(name):\n  return open_file(name=name)\nmake(name='a/b')",
        "layers.Dense(3, kernel='a/b')",
    ],
)
def test_other_names_keep_their_slash(text: str) -> None:
    assert idioms.rewrite(cst.parse_module(text)).code == text
