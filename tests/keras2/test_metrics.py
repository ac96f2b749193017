from official_lite import keras2
from tests import rounding


def test_weights_below_one_count() -> None:
    metric = keras2.MeanIoU(num_classes=2)
    metric.update_state([0, 0, 1, 1], [0, 1, 0, 1], sample_weight=[0.2, 0.3, 0.4, 0.1])
    # Sums of four weights, of two classes.
    rounding.assert_close(metric.result(), (0.2 / 0.9 + 0.1 / 0.8) / 2, roundings=4 * 2)
