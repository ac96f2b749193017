import pytest
import tensorflow as tf

from official_lite.orbit import runner


def test_train_and_evaluate_must_be_written():
    for interface in (runner.AbstractTrainer, runner.AbstractEvaluator):
        with pytest.raises(TypeError, match="abstract"):
            interface()


def test_evaluator_counts_nothing_unless_it_says_so():
    class Evaluator(runner.AbstractEvaluator):
        def evaluate(self, num_steps):
            return {"steps": num_steps}

    evaluator = Evaluator()
    assert evaluator.evaluate(tf.constant(3)) == {"steps": 3}
    assert evaluator.steps_run is None
