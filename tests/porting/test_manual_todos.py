import textwrap

from official_lite.porting import manual_todos


def _find(text: str) -> list[tuple[int, str]]:
    return manual_todos.find("import keras\nimport tensorflow as tf\n" + textwrap.dedent(text))


TODOS = {
    "keras.backend.gradients(y, x)": "`keras.backend.gradients` was removed: use `tf.Grad",
    "keras.layers.NoSuch()": "Keras 3 has no `keras.layers.NoSuch`",
    "from official.vision import configs": "`official.vision.configs` is not part of",
    "from official_lite.core.base_task import Tusk": "has no `official_lite.core.base_task.Tusk`",
    "from tensorflow.python.keras import engine": "belongs to Keras 2",
    "import tensorflow_addons as tfa": "depends on Keras 2",
    "self.add_metric(x)": "`add_metric` was removed",
    "model.reset_states()": "`reset_states` was removed: call `reset_state()` of each layer",
    "isinstance(s, (list, tf.TensorShape))": "shapes are tuples",
    "keras.layers.Embedding(1, 2, weights=w)": "no argument `weights`",
    "model.save(path, save_format='tf')": "no argument `save_format`",
    "keras.layers.Dense(3, name=scope + '/x')": "can't contain a slash",
}


def test_each_line_that_requires_manual_porting_work_is_listed() -> None:
    for text, what in TODOS.items():
        [(line, told)] = _find(text)
        assert (line, what in told) == (3, True), told


def test_tf_variables_and_keras_properties_assigned_in_a_layer_are_listed_as_manual_work() -> None:
    found = _find(
        """
        class Block(keras.layers.Layer):
          def build(self, shape):
            self.scale = tf.Variable(1.0)
            self.losses = []

        class Other:
          def build(self, shape):
            self.losses = [tf.Variable(1.0)]
        """
    )
    assert [line for line, _ in found] == [6, 7]
    assert "Keras doesn't track a `tf.Variable`" in found[0][1]
    assert "`self.losses` is a property in Keras" in found[1][1]


def test_local_name_that_shadows_an_imported_module_is_not_listed_as_manual_work() -> None:
    text = """
    from official_lite.core import config_definitions as cfg
    heads = [cfg.no_such_name() for cfg in configs]

    def f(cfg):
      return cfg.no_such_name()
    """
    assert _find(text) == []


def test_ported_code_requires_no_manual_work() -> None:
    text = """
    from official_lite.core import base_task, train_utils
    from official_lite.modeling import optimization, tf_utils

    class Task(base_task.Task):
      def build_model(self):
        return keras.Sequential([keras.layers.Dense(3, name="a")])

    config = optimization.OptimizationConfig({})
    train_utils.parse_configuration
    tf_utils.get_activation("relu")
    """
    assert _find(text) == []
