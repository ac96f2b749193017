import tensorflow as tf

from official_lite.orbit import actions


def test_conditional_action_calls_its_actions_in_list_order_only_if_its_condition_is_true():
    taken = []
    action = actions.ConditionalAction(
        condition=lambda output: output["go"],
        action=[lambda _: taken.append("first"), lambda _: taken.append("second")],
    )
    action({"go": tf.constant(False)})
    assert taken == []
    action({"go": tf.constant(True)})
    assert taken == ["first", "second"]
    actions.ConditionalAction(lambda _: True, taken.append)({"loss": 1})
    assert taken[2:] == [{"loss": 1}]
