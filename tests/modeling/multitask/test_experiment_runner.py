import pathlib
from collections.abc import Callable
from typing import Any

Experiment = Callable[..., Any]


def test_steps_of_an_evaluation_go_by_the_routine(
    multi_eval_experiment: Experiment,
    run_multi_eval: Callable[..., Any],
    tmp_path: pathlib.Path,
) -> None:
    params = multi_eval_experiment()
    params.eval_tasks[1].eval_steps = 1
    seen = []
    run_multi_eval(
        params,
        "train_and_eval",
        tmp_path,
        eval_actions_factory=lambda params, evaluator, model_dir: [
            lambda logs: seen.append(evaluator.eval_steps)
        ],
    )
    assert seen == [{"foo": None, "bar": 1}] * 2


def test_train_actions_are_made_with_the_manager(
    multi_eval_experiment: Experiment,
    run_multi_eval: Callable[..., Any],
    tmp_path: pathlib.Path,
) -> None:
    seen = []

    def factory(*, params: Any, trainer: Any, model_dir: str, checkpoint_manager: Any) -> Any:
        assert checkpoint_manager.directory == model_dir == str(tmp_path)
        return [lambda logs: seen.append(int(trainer.global_step.numpy()))]

    _, logs = run_multi_eval(
        multi_eval_experiment(), "train", tmp_path, train_actions_factory=factory
    )
    assert seen == [4, 8]
    assert logs == {}
