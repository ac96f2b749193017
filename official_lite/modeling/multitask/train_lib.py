"""Entry points for experiments that train or evaluate several tasks, and their runner.

Everything that does not depend on the number of tasks (records, resuming, recovery, averaged
weights, writers) is shared with `core.train_lib`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import keras
import tensorflow as tf
from absl import logging

from official_lite import orbit
from official_lite.checkpoint import saved_graph
from official_lite.common import errors, files, keras_variables, suggestions
from official_lite.common.flags import Mode
from official_lite.config import parsing
from official_lite.core import (
    actions,
    base_task,
    best_checkpoint,
    step_checks,
    task_factory,
    train_data,
    trainer_factory,
)
from official_lite.core import base_trainer as core_trainer
from official_lite.core import train_lib as core_lib
from official_lite.execution import modes
from official_lite.modeling.multitask import (
    base_model,
    base_trainer,
    configs,
    evaluator,
    interleaving_trainer,
    multitask,
    task_sampler,
)

__all__ = [
    "ActionsFactory",
    "MultiTaskRunner",
    "build_model",
    "create_runner",
    "finetune_with_multitask_eval",
    "get_trainer",
    "run_experiment",
    "run_experiment_with_multitask_eval",
]


ActionsFactory = Callable[..., Sequence[orbit.Action]]


class MultiTaskRunner(core_lib.OrbitExperimentRunner):
    """Experiment runner with an evaluator that is separate from the trainer.

    If there is no trainer, the evaluator takes its place, because it also has a checkpoint, a step,
    a model and an optimizer.

    Args:
        trainer: The trainer, which need not train; None if the evaluator takes its place.
        evaluator: The evaluator; None if nothing is evaluated.
        train_actions_factory: Builds the training actions, instead of the usual ones.
        eval_actions_factory: Builds the evaluation actions, instead of the usual ones.
        loads_weights: Whether the model loads weights itself.
        **kwargs: Further arguments of `OrbitExperimentRunner`.
    """

    def __init__(
        self,
        *,
        trainer: Any,
        evaluator: evaluator.MultiTaskEvaluator | None,
        train_actions_factory: ActionsFactory | None = None,
        eval_actions_factory: ActionsFactory | None = None,
        loads_weights: bool = False,
        **kwargs: Any,
    ) -> None:
        self._evaluator: Any = evaluator
        self._loads_weights = loads_weights
        self._train_actions_factory = train_actions_factory
        self._eval_actions_factory = eval_actions_factory
        if evaluator is not None:
            evaluator.check_data(kwargs["params"].trainer.validation_steps)
        # Pass no task, because the runner needs it only to build the trainer or evaluator passed
        # here.
        super().__init__(task=cast(base_task.Task, None), trainer=trainer or evaluator, **kwargs)

    def run(self) -> tuple[Any, core_lib.Logs]:
        model, logs = super().run()
        # Omit the controller's own log entries, because callers expect one entry per task.
        return model, {name: value for name, value in logs.items() if isinstance(value, Mapping)}

    def _find_evaluator(self) -> Any:
        return self._evaluator

    def _find_unneeded(self) -> Iterator[Any]:
        yield from super()._find_unneeded()
        # Accept checkpoints without the step counters of the tasks. Older versions wrote best
        # checkpoints without them, and a training may change from joint to interleaved.
        yield from getattr(self.trainer.checkpoint, "task_step_counters", {}).values()
        if not self.trains:
            # Accept checkpoints without the state that tasks hold, which older versions wrote.
            for name, part in tf.train.TrackableView.children(self.trainer.checkpoint).items():
                if name.startswith(saved_graph.ATTRIBUTES):
                    yield from keras_variables.variables_of(part)

    def _export_averaged_weights(self) -> None:
        super()._export_averaged_weights()
        if self._evaluator is None:
            # Without an evaluator, there are no actions after an evaluation.
            for action in actions.get_eval_actions(self.params, self.trainer, self.model_dir):
                if isinstance(action, actions.EMACheckpointing):
                    action()

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


TRAINERS = {
    "interleaving": interleaving_trainer.MultiTaskInterleavingTrainer,
    "joint": base_trainer.MultiTaskBaseTrainer,
}

Logs = core_lib.Logs

ExporterCreator = Callable[[Any, str], best_checkpoint.BestCheckpointExporter | None]


def run_experiment(
    *,
    distribution_strategy: tf.distribute.Strategy,
    task: multitask.MultiTask,
    model: base_trainer.Model,
    mode: str,
    params: configs.MultiTaskExperimentConfig,
    model_dir: str,
    run_post_eval: bool = False,
    trainer: base_trainer.MultiTaskBaseTrainer | None = None,
    eval_summary_manager: orbit.utils.SummaryManagerInterface | None = None,
    best_ckpt_exporter_creator: ExporterCreator = best_checkpoint.maybe_create_best_ckpt_exporter,
    allow_config_change: bool = False,
) -> Any:
    """Train or evaluate several tasks as configured, resuming from `model_dir` if possible.

    Args:
        distribution_strategy: The strategy to run under.
        task: The tasks.
        model: The models of the tasks. The caller creates them and thereby chooses the precision of
            their layers: create them under `runtime.seed_and_precision(params.runtime)`.
        mode: `train`, `eval`, `train_and_eval`, `continuous_eval` or `train_and_post_eval`.
        params: The experiment's config.
        model_dir: The model directory of the run.
        run_post_eval: Whether to evaluate once after training and return the metrics.
        trainer: A trainer to use instead of the configured one.
        eval_summary_manager: The destination of evaluation summaries, instead of event files.
        best_ckpt_exporter_creator: Builds the exporter of the best checkpoint from `params` and
            `model_dir`.
        allow_config_change: Whether training may resume from checkpoints of a different config.

    Returns:
        The model; with `run_post_eval` also the metrics, nested by task.

    Raises:
        errors.OfficialLiteError: For any problem that the user can fix; see `common.errors`.
    """
    _check_that_init_checkpoint_is_read(params, model)
    model_dir = files.expand_home(model_dir)
    params = parsing.read_model_files(parsing.expand_home(params))
    params = train_data.resolve_epochs(params, task, mode, model_dir)
    model, logs = core_lib.execute(
        lambda: create_runner(
            distribution_strategy=distribution_strategy,
            task=task,
            model=model,
            mode=mode,
            params=params,
            model_dir=model_dir,
            run_post_eval=run_post_eval,
            trainer=trainer,
            eval_summary_manager=eval_summary_manager,
            best_ckpt_exporter_creator=best_ckpt_exporter_creator,
        ),
        strategy=distribution_strategy,
        params=params,
        mode=mode,
        model_dir=model_dir,
        loads_weights=_loads_weights(model),
        allow_config_change=allow_config_change,
    )
    return (model, logs) if run_post_eval else model


def create_runner(
    *,
    distribution_strategy: tf.distribute.Strategy,
    task: multitask.MultiTask,
    model: base_trainer.Model,
    mode: str,
    params: configs.MultiTaskExperimentConfig,
    model_dir: str,
    run_post_eval: bool = False,
    trainer: base_trainer.MultiTaskBaseTrainer | None = None,
    optimizer: keras.optimizers.Optimizer | None = None,
    best_ckpt_exporter_creator: ExporterCreator = best_checkpoint.maybe_create_best_ckpt_exporter,
    **kwargs: Any,
) -> core_lib.OrbitExperimentRunner:
    """Build the runner of an experiment: trainer, evaluator, controller, hooks and writers.

    Args:
        distribution_strategy: The strategy to run under.
        task: The tasks.
        model: The models of the tasks.
        mode: The mode.
        params: The experiment's config.
        model_dir: The model directory of the run.
        run_post_eval: Whether to evaluate once after training.
        trainer: A trainer to use instead of the configured one.
        optimizer: The optimizer; by default, the task creates one.
        best_ckpt_exporter_creator: Builds the exporter of the best checkpoint from `params` and
            `model_dir`.
        **kwargs: Further arguments of `OrbitExperimentRunner`.
    """
    _check_that_init_checkpoint_is_read(params, model)
    with distribution_strategy.scope():
        if trainer is None and Mode.parse(mode).trains:
            trainer = get_trainer(
                distribution_strategy,
                params,
                task,
                model,
                optimizer,
                evaluates=_evaluates(mode, run_post_eval),
            )
        eval_part = None
        if _evaluates(mode, run_post_eval):
            eval_part = _build_evaluator(
                trainer,
                task.tasks.values(),
                model,
                task.task_eval_steps,
                best_ckpt_exporter_creator(params, model_dir),
                optimizer=_optimizer(trainer, task, params, optimizer),
                params=params,
                multi_task=task,
            )
            if trainer is None:
                _add_positions(eval_part.checkpoint, task, params)
    return MultiTaskRunner(
        evaluator=eval_part,
        distribution_strategy=distribution_strategy,
        trainer=trainer,
        mode=mode,
        params=params,
        model_dir=model_dir,
        run_post_eval=run_post_eval,
        loads_weights=_loads_weights(model),
        **kwargs,
    )


def get_trainer(
    distribution_strategy: tf.distribute.Strategy,
    params: configs.MultiTaskExperimentConfig,
    task: multitask.MultiTask,
    model: base_trainer.Model,
    optimizer: keras.optimizers.Optimizer | None = None,
    *,
    evaluates: bool = False,
) -> base_trainer.MultiTaskBaseTrainer:
    """Build the trainer that `params.trainer` selects; it may create the optimizer, too.

    Args:
        distribution_strategy: The strategy to run under.
        params: The experiment's config.
        task: The tasks.
        model: The models of the tasks.
        optimizer: The optimizer; by default, the task creates one.
        evaluates: Whether the run also evaluates the tasks, so that the layers that only an
            evaluation calls are built, too.

    Raises:
        errors.ConfigValueError: A field of `params.trainer` is not supported.
        errors.UnknownNameError: The `trainer_type` is unknown.
    """
    config = params.trainer
    if config.trainer_type not in TRAINERS:
        raise errors.UnknownNameError(
            f"Unknown trainer type {config.trainer_type!r}. "
            f"{suggestions.did_you_mean(config.trainer_type, TRAINERS)}"
        )
    # Validate again, because fields may have been set after the config was parsed.
    config.validate_fields()
    execution = modes.execution_of(params.runtime)
    if execution == "auto":
        execution = "graph"
    if params.runtime.dataset_num_private_threads:
        logging.warning(
            "`runtime.dataset_num_private_threads` has no effect with several tasks; remove it."
        )
    kwargs: dict[str, Any] = {}
    if config.trainer_type == "interleaving":
        kwargs["task_sampler"] = task_sampler.get_task_sampler(
            config.task_sampler, task.task_weights
        )
    elif config.trainer_type == "joint":
        kwargs["steps_per_loop"] = config.steps_per_loop
    with distribution_strategy.scope():
        if evaluates:
            evaluator.build_models(task.tasks.values(), model)
        return TRAINERS[config.trainer_type](
            multi_task=task,
            multi_task_model=model,
            optimizer=optimizer or trainer_factory.create_optimizer(task, params),
            trainer_options=orbit.StandardTrainerOptions(
                use_tf_function=params.trainer.train_tf_function,
                use_tf_while_loop=params.trainer.train_tf_while_loop,
            ),
            seed=params.runtime.seed,
            execution=execution,
            **kwargs,
        )


def run_experiment_with_multitask_eval(
    *,
    distribution_strategy: tf.distribute.Strategy,
    train_task: base_task.Task | multitask.MultiTask,
    eval_tasks: Sequence[base_task.Task],
    mode: str,
    params: configs.MultiEvalExperimentConfig,
    model_dir: str,
    run_post_eval: bool = False,
    save_summary: bool = True,
    trainer: core_trainer.Trainer | base_trainer.MultiTaskBaseTrainer | None = None,
    eval_summary_manager: orbit.utils.SummaryManagerInterface | None = None,
    best_ckpt_exporter_creator: ExporterCreator = best_checkpoint.maybe_create_best_ckpt_exporter,
    train_actions_factory: ActionsFactory | None = None,
    eval_actions_factory: ActionsFactory | None = None,
    allow_config_change: bool = False,
) -> tuple[base_trainer.Model, Logs]:
    """Train one task and evaluate its model on several tasks.

    Args:
        distribution_strategy: The strategy to run under.
        train_task: The task to train. A `MultiTask` is supported if it has a
            `build_multitask_model` method and, for modes that train, if `trainer` is given.
        eval_tasks: The tasks of each evaluation, identified by their names.
        mode: `train`, `eval`, `train_and_eval`, `continuous_eval` or `train_and_post_eval`.
        params: The experiment's config. Its `eval_tasks` define the number of batches of each
            evaluation.
        model_dir: The model directory of the run.
        run_post_eval: Whether to evaluate once after training and return the metrics.
        save_summary: Whether to write metrics and event files.
        trainer: A trainer to use instead of the configured one.
        eval_summary_manager: The destination of evaluation summaries, instead of event files.
        best_ckpt_exporter_creator: Builds the exporter of the best checkpoint from `params` and
            `model_dir`.
        train_actions_factory: Builds the training actions from `params`, `trainer`, `model_dir` and
            `checkpoint_manager`, instead of the usual ones.
        eval_actions_factory: Builds the evaluation actions from the params, the evaluator and the
            model directory, passed by position.
        allow_config_change: Whether training may resume from checkpoints of a different config.

    Returns:
        The model, and the metrics of the evaluation after training. The metrics are an empty
        dictionary unless `run_post_eval` is set.

    Raises:
        errors.OfficialLiteError: For any problem that the user can fix; see `common.errors`.
    """
    params.validate_fields()
    model_dir = files.expand_home(model_dir)
    # Resolve the config before it becomes the default argument of `build_runner`, because
    # `core_lib.execute` passes a config only if `trainer.fit_memory` changes it.
    params = parsing.read_model_files(parsing.expand_home(params))
    params = train_data.resolve_epochs(params, train_task, mode, model_dir)

    def build_runner(
        params: configs.MultiEvalExperimentConfig = params,
    ) -> core_lib.OrbitExperimentRunner:
        with distribution_strategy.scope():
            trains, evaluates = Mode.parse(mode).trains, _evaluates(mode, run_post_eval)
            train_part: Any = trainer if trains else None
            if train_part is None and (trains or isinstance(train_task, base_task.Task)):
                train_part = _create_trainer(
                    params,
                    cast(base_task.Task, train_task),
                    eval_tasks if evaluates else (),
                    trains=trains,
                )
            model = train_part.model if train_part else build_model(train_task)
            eval_part = None
            if evaluates:
                eval_part = _build_evaluator(
                    train_part,
                    eval_tasks,
                    model,
                    {routine.resolved_name: routine.eval_steps for routine in params.eval_tasks},
                    best_ckpt_exporter_creator(params, model_dir),
                    optimizer=_optimizer(train_part, train_task, params),
                    params=params,
                    init_fn=_init_fn(train_task, model),
                )
        return MultiTaskRunner(
            evaluator=eval_part,
            train_actions_factory=train_actions_factory,
            eval_actions_factory=eval_actions_factory,
            distribution_strategy=distribution_strategy,
            trainer=train_part,
            mode=mode,
            params=params,
            model_dir=model_dir,
            run_post_eval=run_post_eval,
            save_summary=save_summary,
            eval_summary_manager=eval_summary_manager,
        )

    return core_lib.execute(
        build_runner,
        strategy=distribution_strategy,
        params=params,
        mode=mode,
        model_dir=model_dir,
        task=train_task if isinstance(train_task, base_task.Task) else None,
        allow_config_change=allow_config_change,
    )


def finetune_with_multitask_eval(
    distribution_strategy: tf.distribute.Strategy,
    task: base_task.Task,
    params: configs.MultiEvalExperimentConfig,
    model_dir: str,
    *,
    allow_config_change: bool = False,
) -> Logs:
    """Fine-tune a task and evaluate it on `params.eval_tasks`.

    Use this function as the `finetune` argument of
    `continuous_finetune_lib.run_continuous_finetune(…, finetune=finetune_with_multitask_eval)`.

    Args:
        distribution_strategy: The strategy to run under.
        task: The task to train.
        params: The experiment's config.
        model_dir: The model directory of the run.
        allow_config_change: Whether training may resume from checkpoints of a different config.

    Returns:
        The metrics of the evaluation after training, nested by task.
    """
    with distribution_strategy.scope():
        eval_tasks = [
            task_factory.get_task(routine.task_config, name=routine.resolved_name)
            for routine in params.eval_tasks
        ]
    _, logs = run_experiment_with_multitask_eval(
        distribution_strategy=distribution_strategy,
        train_task=task,
        eval_tasks=eval_tasks,
        mode="train_and_eval",
        params=params,
        model_dir=model_dir,
        run_post_eval=True,
        allow_config_change=allow_config_change,
    )
    return logs


def _create_trainer(
    params: configs.MultiEvalExperimentConfig,
    task: base_task.Task,
    eval_tasks: Sequence[base_task.Task],
    *,
    trains: bool,
) -> core_trainer.Trainer:
    """Build the trainer of one task, and its model for the steps of all tasks.

    A job that only evaluates also needs the trainer, because the trainer's checkpoint contains the
    same objects as the checkpoints of the training job.
    """

    def build(model: keras.Model) -> None:
        evaluator.build_models(eval_tasks, model, params.trainer.virtual_replicas)

    with core_trainer.building_first(build):
        return trainer_factory.create_trainer(params, task, train=trains, evaluate=False)


def _evaluates(mode: str, run_post_eval: bool) -> bool:
    return Mode.parse(mode).evaluates or run_post_eval


def _build_evaluator(
    trainer: Any,
    tasks: Iterable[base_task.Task],
    model: base_trainer.Model,
    eval_steps: Mapping[str, int | None],
    exporter: best_checkpoint.BestCheckpointExporter | None,
    *,
    params: Any,
    **kwargs: Any,
) -> evaluator.MultiTaskEvaluator:
    compiled = modes.execution_of(params.runtime) != "eager"
    return evaluator.MultiTaskEvaluator(
        tasks,
        model,
        trainer.global_step if trainer else None,
        eval_steps,
        exporter,
        checkpoint=trainer.checkpoint if trainer else None,
        freeze=() if trainer else params.trainer.freeze,
        virtual_replicas=params.trainer.virtual_replicas,
        evaluator_options=orbit.StandardEvaluatorOptions(
            use_tf_function=params.trainer.eval_tf_function and compiled,
            # The state of `aggregate_logs` starts as None, which a `tf.while_loop` cannot carry.
            use_tf_while_loop=False,
        ),
        **kwargs,
    )


def _optimizer(
    trainer: Any, task: Any, params: Any, given: keras.optimizers.Optimizer | None = None
) -> keras.optimizers.Optimizer:
    """Return the trainer's optimizer or, without a trainer, the given or configured optimizer.

    Evaluation requires an optimizer to restore averaged weights.
    """
    if trainer:
        return trainer.optimizer
    return given or trainer_factory.create_optimizer(task, params)


def _add_positions(
    checkpoint: tf.train.Checkpoint,
    task: multitask.MultiTask,
    params: configs.MultiTaskExperimentConfig,
) -> None:
    """Add the positions in the training data to `checkpoint`, so that saving it preserves them.

    For the interleaving trainer, also add the step counters of the tasks.
    """
    distribute = orbit.utils.make_distributed_dataset
    items: Any = train_data.TrainDataByTask(task.tasks, params, distribute).variables
    if params.trainer.trainer_type == "interleaving":
        items["task_step_counters"] = {
            name: orbit.utils.create_global_step() for name in task.tasks
        }
    for name, item in items.items():
        setattr(checkpoint, name, item)


def build_model(task: Any) -> base_trainer.Model:
    """Build the model of a task, or the multi-task model of a `MultiTask`."""
    if isinstance(task, multitask.MultiTask):
        model = keras_variables.build_with_fresh_names(task.build_multitask_model)
        return step_checks.returned(task.build_multitask_model, model, "a Keras model")
    return trainer_factory.build_model(task)


def _init_fn(task: Any, model: base_trainer.Model) -> Callable[[], None] | None:
    initialize = getattr(task, "initialize", None)
    return initialize and (lambda: initialize(model))


def _loads_weights(model: base_trainer.Model) -> bool:
    """Return whether the class of a model overrides `initialize`."""
    base = base_model.MultiTaskBaseModel
    return isinstance(model, base) and type(model).initialize is not base.initialize


def _check_that_init_checkpoint_is_read(params: Any, model: base_trainer.Model) -> None:
    if params.task.init_checkpoint and not _loads_weights(model):
        raise errors.ConfigValueError(
            f"`task.init_checkpoint` is {params.task.init_checkpoint!r}, but "
            f"{type(model).__name__} does not read it. Override "
            "`MultiTaskBaseModel.initialize` to load it."
        )
