import tensorflow as tf

from official_lite.orbit import actions


def test_actions_are_taken_in_order_under_the_condition():
    taken = []
    action = actions.ConditionalAction(
        condition=lambda output: output["go"],
        action=[lambda _: taken.append("first"), lambda _: taken.append("second")],
    )
    action({"go": tf.constant(False)})
    assert taken == []
    action({"go": tf.constant(True)})
    assert taken == ["first", "second"]


def test_single_action_gets_the_output():
    taken = []
    actions.ConditionalAction(lambda _: True, taken.append)({"loss": 1})
    assert taken == [{"loss": 1}]
