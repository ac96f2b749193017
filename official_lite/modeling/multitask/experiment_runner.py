"""Runner of experiments with several tasks or several evaluations."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from official_lite import orbit
from official_lite.core import base_task, train_lib
from official_lite.modeling.multitask import evaluator

__all__ = ["ActionsFactory", "MultiTaskRunner"]

ActionsFactory = Callable[..., Sequence[orbit.Action]]


class MultiTaskRunner(train_lib.OrbitExperimentRunner):
    """Experiment runner with an evaluator that is separate from the trainer.

    If nothing is trained, the evaluator takes the place of the trainer: it has the same checkpoint,
    step, model and optimizer.
    """

    def __init__(
        self,
        *,
        trainer: Any,
        evaluator: evaluator.MultiTaskEvaluator | None,
        train_actions_factory: ActionsFactory | None = None,
        eval_actions_factory: ActionsFactory | None = None,
        **kwargs: Any,
    ) -> None:
        self._evaluator: Any = evaluator
        self._train_actions_factory = train_actions_factory
        self._eval_actions_factory = eval_actions_factory
        # The runner needs the task only to build a trainer, which already exists here.
        super().__init__(task=cast(base_task.Task, None), trainer=trainer or evaluator, **kwargs)

    def run(self) -> tuple[Any, train_lib.Logs]:
        model, logs = super().run()
        # Omit the controller's own values: callers expect one entry per task.
        return model, {name: value for name, value in logs.items() if isinstance(value, Mapping)}

    def _find_evaluator(self) -> Any:
        return self._evaluator

    def _build_train_actions(self, trainer: Any) -> list[orbit.Action]:
        if self._train_actions_factory is None:
            return super()._build_train_actions(trainer)
        return list(
            self._train_actions_factory(
                params=self.params,
                trainer=trainer,
                model_dir=self.model_dir,
                checkpoint_manager=self.checkpoint_manager,
            )
        )

    def _build_eval_actions(self, evaluator: Any) -> list[orbit.Action]:
        if self._eval_actions_factory is None:
            return super()._build_eval_actions(evaluator)
        return list(self._eval_actions_factory(self.params, evaluator, self.model_dir))
