"""Executors, one for each way to execute steps; a trainer gets its loops from its executor."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from official_lite import orbit
from official_lite.common import nests, terminal, user_code
from official_lite.core import step_metrics
from official_lite.modeling.optimization import gradient_accumulator
from official_lite.orbit import standard_runner

__all__ = [
    "Dataset",
    "EvalStep",
    "GraphExecutor",
    "StepFn",
    "TrainStep",
    "XlaExecutor",
    "XlaLoopExecutor",
]

Dataset: TypeAlias = tf.data.Dataset | tf.distribute.DistributedDataset
StepFn = Callable[..., Any]
TrainStep = Callable[..., Mapping[str, Any]]
EvalStep = Callable[[nests.Nest], Mapping[str, Any]]
# The metrics of a task, or of several tasks by name.
Metrics: TypeAlias = Sequence[keras.metrics.Metric] | Mapping[str, Sequence[keras.metrics.Metric]]

# More sizes of batches than an epoch and its last batch need, or a few buckets.
_MANY_SIZES = 8


class GraphExecutor:
    """Executes steps in TensorFlow graphs, or eagerly if the trainer's options say so.

    The other executors override what they do differently.

    Args:
        strategy: The strategy of the trainer.
        options: Options for `strategy.run`.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, options: tf.distribute.RunOptions | None = None
    ) -> None:
        self.strategy = strategy
        self._options = options

    def distribute(
        self, dataset_or_fn: Dataset | Callable[..., Dataset], *args: Any, **kwargs: Any
    ) -> Dataset:
        """Distribute a training dataset, or the result of a dataset function, over the replicas."""
        return orbit.utils.make_distributed_dataset(self.strategy, dataset_or_fn, *args, **kwargs)

    def distribute_eval(
        self, dataset_or_fn: Dataset | Callable[..., Dataset], *args: Any, **kwargs: Any
    ) -> Dataset:
        """Distribute a dataset for evaluation."""
        return self.distribute(dataset_or_fn, *args, **kwargs)

    def create_train_loop(
        self, trainer: orbit.StandardTrainer, dataset: Dataset
    ) -> orbit.TrainLoop:
        """Create the training loop over a dataset."""
        return standard_runner.IteratorLoop(trainer.create_train_loop_fn, dataset)

    def create_train_loop_fn(self, trainer: orbit.StandardTrainer) -> Callable[..., Any]:
        """Create the function `(iterator, num_steps)` that the training loop calls."""
        return orbit.StandardTrainer.create_train_loop_fn(trainer)

    def create_eval_loop_fn(
        self, trainer: orbit.StandardEvaluator, has_state: bool
    ) -> Callable[..., Any]:
        """Create the function `(iterator, num_steps, state, reduce_fn)` that evaluates."""
        return orbit.StandardEvaluator.create_eval_loop_fn(trainer, has_state)

    @property
    def num_sizes(self) -> int:
        """The number of different sizes of batches for which programs were compiled."""
        return 0

    def run_steps(self, trainer: orbit.StandardTrainer, num_steps: tf.Tensor) -> None:
        """Run steps, and advance the global step by their number."""
        orbit.StandardTrainer.run_steps(trainer, num_steps)

    def run_step(self, step_fn: StepFn, *inputs: nests.Nest) -> Any:
        """Run a function on all replicas, as a part of a step."""
        step_fn = user_code.converted(step_fn)
        return self.strategy.run(step_fn, args=inputs, options=self._options)

    def replica_step(self, step: TrainStep, metrics: Metrics) -> TrainStep:
        """Return the function that a replica calls instead of a task's `train_step`.

        Args:
            step: The `train_step` of a task, or a function with the same arguments.
            metrics: The metrics that the step updates.
        """
        del metrics
        return user_code.converted(step)

    def count_examples(self, inputs: nests.Nest) -> tuple[tf.Tensor | None, int]:
        """Return the number of examples in the inputs of a replica, and the number of replicas.

        Returns:
            None in place of the number of examples if it is unknown, or the same in all batches.
        """
        return step_metrics.num_examples(inputs), self.strategy.num_replicas_in_sync

    def run_eval_step(
        self, step: EvalStep, inputs: nests.Nest
    ) -> dict[str, tuple[nests.Nest, ...]]:
        """Run a step of an evaluation on all replicas.

        Returns:
            Each output of the step, as a tuple with one element per replica of this host.
        """
        outputs = self.strategy.run(step, args=(inputs,))
        return tf.nest.map_structure(self.strategy.experimental_local_results, outputs)

    def replica_spec(self, dataset: Dataset) -> nests.Nest:
        """Return the specs of the inputs of a task's step, given the data of the trainer."""
        return dataset.element_spec

    def join(self) -> None:
        """Wait for scheduled steps. Only the workers of a parameter server have any."""


class XlaExecutor(GraphExecutor):
    """Compiles the computation of a replica with XLA.

    A single replica's step is one XLA program. Several replicas exchange gradients, which XLA
    cannot do, so only the forward and backward passes are compiled.
    """

    name: ClassVar[str] = "xla"

    def __init__(
        self, strategy: tf.distribute.Strategy, options: tf.distribute.RunOptions | None = None
    ) -> None:
        super().__init__(strategy, options)
        self._sizes: set[bytes] = set()
        self._programs: dict[StepFn, StepFn] = {}
        self._split_steps: dict[TrainStep, TrainStep] = {}

    def create_eval_loop_fn(
        self, trainer: orbit.StandardEvaluator, has_state: bool
    ) -> Callable[..., Any]:
        options = trainer.eval_options
        is_compilable = (
            isinstance(trainer.eval_dataset, tf.data.Dataset)
            and options.use_tf_function
            and not options.use_tf_while_loop
        )
        if not is_compilable:
            return super().create_eval_loop_fn(trainer, has_state)
        return orbit.XlaEvalLoop(trainer.eval_step, needs_outputs=self._needs_outputs(trainer))

    @property
    def num_sizes(self) -> int:
        return len(self._sizes)

    def run_step(self, step_fn: StepFn, *inputs: nests.Nest) -> Any:
        self._watch_sizes(inputs)
        if self.strategy.num_replicas_in_sync > 1:
            return super().run_step(step_fn, *inputs)
        if step_fn not in self._programs:
            run = functools.partial(super().run_step, step_fn)
            self._programs[step_fn] = tf.function(
                lambda *args: run(*args), autograph=False, jit_compile=True
            )
        return self._programs[step_fn](*inputs)

    def replica_step(self, step: TrainStep, metrics: Metrics) -> TrainStep:
        if self.strategy.num_replicas_in_sync == 1:
            return super().replica_step(step, metrics)
        # Every split step is compiled, so make only one of each.
        if step not in self._split_steps:
            self._split_steps[step] = _split_train_step(step, metrics)
        return self._split_steps[step]

    def _needs_outputs(self, trainer: orbit.StandardEvaluator) -> bool:
        """Return whether each step of an evaluation is a program of its own."""
        return True

    def _watch_sizes(self, inputs: nests.Nest) -> None:
        """Note the sizes of batches, unless they are known when the step is traced."""
        shapes = [tf.shape(x) for x in nests.tensors_in(inputs) if not x.shape.is_fully_defined()]
        if shapes:
            tf.numpy_function(self._note_size, [tf.concat(shapes, 0)], [])

    def _note_size(self, shape: npt.NDArray[np.int32]) -> None:
        self._sizes.add(shape.tobytes())
        if len(self._sizes) == _MANY_SIZES:
            terminal.warn_once(
                "`runtime.execution` is %s, and the batches have had %d different sizes so far. "
                "XLA compiles a program for each of them. Pad the batches to one size or a few, or "
                "use the execution mode `graph`.",
                self.name,
                _MANY_SIZES,
            )


class XlaLoopExecutor(XlaExecutor):
    """Compiles many steps of a single replica into one XLA program, over stacked batches.

    Args:
        strategy: The strategy of the trainer.
        options: Options for `strategy.run`.
        steps_per_loop: The number of steps that are usually run at once.
    """

    name: ClassVar[str] = "xla_loop"

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        options: tf.distribute.RunOptions | None = None,
        steps_per_loop: int = 1,
    ) -> None:
        super().__init__(strategy, options)
        self._steps_per_loop = steps_per_loop

    def create_train_loop(
        self, trainer: orbit.StandardTrainer, dataset: Dataset
    ) -> orbit.TrainLoop:
        steps = orbit.steps_per_stack(
            dataset.element_spec, self._steps_per_loop, trainer.batches_per_step
        )
        return orbit.StackedLoop(
            trainer.train_step,
            dataset,
            steps=steps,
            batches_per_step=trainer.batches_per_step,
            wrap_fetch=trainer.wrap_step,
            counts=trainer.batch_counts,
        )

    def run_step(self, step_fn: StepFn, *inputs: nests.Nest) -> Any:
        # The program around the whole loop compiles the step.
        return GraphExecutor.run_step(self, step_fn, *inputs)

    def _needs_outputs(self, trainer: orbit.StandardEvaluator) -> bool:
        return trainer.folds_outputs


def _split_train_step(step: TrainStep, metrics: Metrics) -> TrainStep:
    """Return a step with its forward and backward passes compiled, but not the update.

    The returned function takes the arguments of `step`; its metrics are those given here.
    """
    variables: list[tf.Variable] = []

    @tf.function(jit_compile=True)
    def forward_and_backward(
        inputs: nests.Nest, model: keras.Model, optimizer: keras.optimizers.Optimizer
    ) -> tuple[Mapping[str, Any], list[tf.Tensor]]:
        collector = gradient_accumulator.GradientCollector(optimizer)
        logs = step(inputs, model=model, optimizer=collector, metrics=metrics)
        variables[:] = [variable for _, variable in collector.grads_and_vars]
        return logs, [gradient for gradient, _ in collector.grads_and_vars]

    def train_step(
        inputs: nests.Nest,
        *,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        metrics: Any = None,
    ) -> Mapping[str, Any]:
        del metrics
        logs, gradients = forward_and_backward(inputs, model, optimizer)
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
        return logs

    return train_step
