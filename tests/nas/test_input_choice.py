import numpy as np
import pytest
import tensorflow as tf

from official_lite import nas
from official_lite.common import errors
from official_lite.nas import resolution


@pytest.mark.parametrize(
    ("n_chosen", "options"),
    [
        (1, [[0], [1], [2]]),
        (2, [[0, 1], [0, 2], [1, 2]]),
        (None, [[0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]]),
    ],
)
def test_inputs_are_chosen_as_sets(n_chosen, options) -> None:
    choice = nas.InputChoice(3, n_chosen, label="inputs")
    assert choice.options == options


@pytest.mark.parametrize(
    ("reduction", "wanted"), [("sum", [4.0]), ("mean", [2.0]), ("concat", [1.0, 3.0])]
)
def test_chosen_inputs_are_reduced_alike_open_and_fixed(reduction, wanted) -> None:
    x = [tf.constant([[1.0]]), tf.constant([[2.0]]), tf.constant([[3.0]])]
    choice = nas.InputChoice(3, 2, reduction, label="inputs")
    choice.set_resolver(resolution.FixedResolver(1))
    np.testing.assert_allclose(choice(x)[0], wanted)
    with nas.fixed_arch({"inputs": [0, 2]}):
        fixed = nas.InputChoice(3, 2, reduction, label="inputs")
    np.testing.assert_allclose(fixed(x)[0], wanted)


def test_reduction_none_gives_the_list() -> None:
    with nas.fixed_arch({"inputs": [0, 1]}):
        fixed = nas.InputChoice(2, 2, "none", label="inputs")
    assert len(fixed([tf.ones([1]), tf.zeros([1])])) == 2


def test_too_many_sets_of_inputs_are_refused() -> None:
    with pytest.raises(errors.ConfigValueError, match="Use several choices of one input"):
        nas.InputChoice(20, None, label="inputs")


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: nas.InputChoice(2, label=""), "needs a `label`"),
        (lambda: nas.InputChoice(2, 3, label="i"), "`n_chosen` of 'i' is 3; expected 1 to 2"),
        (lambda: nas.InputChoice(2, reduction="som", label="i"), "'som'.*sum"),
    ],
)
def test_choice_of_inputs_that_can_not_be_is_refused(make, complaint) -> None:
    with pytest.raises(errors.ConfigValueError, match=complaint):
        make()
