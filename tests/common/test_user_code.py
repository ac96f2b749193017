import tensorflow as tf

from official_lite.common import errors, user_code


def _sign(number):
    # AutoGraph must convert this branch on a tensor.
    if number > 0:
        return tf.constant(1)
    return tf.constant(-1)


def test_user_code_called_by_framework_code_may_branch_on_tensors():
    @user_code.not_converted
    def framework(number):
        return user_code.converted(_sign)(number)

    compiled = tf.function(framework)

    assert compiled(tf.constant(5)) == 1
    assert compiled(tf.constant(-5)) == -1


def test_autograph_converts_user_functions_but_not_framework_functions():
    @tf.function
    def is_same():
        assert user_code.converted(errors.DataError) is errors.DataError
        assert user_code.converted(_sign) is not _sign

    is_same()


def test_user_functions_are_not_converted_outside_a_graph():
    assert user_code.converted(_sign) is _sign
