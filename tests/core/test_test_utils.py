import tensorflow as tf

from official_lite.core import test_utils


def test_the_fake_models_map_features_to_four_units():
    inputs = tf.ones([3, 5])
    for model in (test_utils.FakeKerasModel(), test_utils.FakeModule(5)):
        outputs = model(inputs)
        assert outputs.shape == (3, 4)
        assert len(model.trainable_variables) == 4
