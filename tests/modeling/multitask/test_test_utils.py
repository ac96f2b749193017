import keras

from official_lite.core import task_factory
from official_lite.modeling.multitask import test_utils


def test_tasks_are_registered() -> None:
    foo = task_factory.get_task(test_utils.FooConfig())
    bar = task_factory.get_task(test_utils.BarConfig())
    assert (type(foo), type(bar)) == (test_utils.MockFooTask, test_utils.MockBarTask)


def test_foo_takes_the_features_of_both() -> None:
    model = test_utils.MockFooTask(test_utils.FooConfig()).build_model()
    for name in ("foo", "bar"):
        features, labels = next(iter(test_utils.mock_data(name)))
        assert model(features).shape == labels.shape == (test_utils.BATCH_SIZE, 1)


def test_models_share_a_layer() -> None:
    model = test_utils.MockMultiTaskModel()
    for name, sub_model in model.sub_tasks.items():
        sub_model({name: keras.ops.zeros((2, 2))})
    # Kernel and bias of the shared layer and of each of the others.
    assert len(model.trainable_variables) == 6
