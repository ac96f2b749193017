"""A trainer whose steps are executed in one of several modes."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from official_lite import orbit
from official_lite.common import errors, user_code
from official_lite.data import tf_data_options
from official_lite.execution import modes, parameter_server, repeatability
from official_lite.execution.parameter_server import Dataset

__all__ = ["CompiledTrainer"]

# What XLA says of ops that are not its own.
_NOT_COMPILABLE = "unsupported operations"


class CompiledTrainer(parameter_server.AsyncTrainer):
    """Runs its steps as `execution` says.

    A subclass calls `init_execution`, and runs the replicas' part of a step by `run_step`.
    """

    config: Any
    model: Any
    _runtime_options: tf.distribute.RunOptions | None = None
    # Whether the step was searched for what would make a resumed training another one.
    _is_searched = False

    def init_execution(self) -> None:
        """Takes the mode that the config names; for `auto`, until it is decided, `graph`."""
        requested = modes.execution_of(self.config.runtime)
        self._execution = "graph" if requested == "auto" else requested
        self._eval_execution = self._execution
        # Past `tf.Module`, which would wrap and track a dictionary.
        self.__dict__["_compiled"] = {}

    @property
    def batches_per_step(self) -> int:
        """Batches that a step draws."""
        return 1

    @property
    def folds_outputs(self) -> bool:
        """Whether the outputs of each step of an evaluation are wanted on the host."""
        return True

    @property
    def execution(self) -> str:
        """How steps are executed: `eager`, `graph`, `xla` or `xla_loop`. See docs/performance.md.

        Set it before the training; a trainer that has begun would begin its data anew.
        """
        return self._execution

    @execution.setter
    def execution(self, value: str) -> None:
        modes.check(value, self)
        self._execution = value
        self._compiled.clear()
        self.use_train_loop(None)

    @property
    def eval_execution(self) -> str:
        """The same for evaluation."""
        return self._eval_execution

    @eval_execution.setter
    def eval_execution(self, value: str) -> None:
        self._eval_execution = value
        self._eval_loop_fn = None

    def distribute_dataset(self, dataset_or_fn: Any, *args: Any, **kwargs: Any) -> Any:
        """Distributes a dataset, or what a dataset function returns, over the replicas."""
        return super().distribute_dataset(self._with_own_threads(dataset_or_fn), *args, **kwargs)

    def distribute_eval_dataset(self, dataset_or_fn: Any, *args: Any, **kwargs: Any) -> Any:
        """The same for evaluation."""
        own = self._with_own_threads(dataset_or_fn)
        return super().distribute_eval_dataset(own, *args, **kwargs)

    def create_train_loop(self, dataset: Dataset) -> orbit.TrainLoop:
        """The loop that belongs to `execution`."""
        if self.execution != "xla_loop":
            return super().create_train_loop(dataset)
        return orbit.StackedLoop(
            self.train_step,
            dataset,
            steps=orbit.steps_per_stack(
                dataset.element_spec, self.config.trainer.steps_per_loop, self.batches_per_step
            ),
            batches_per_step=self.batches_per_step,
            wrap_fetch=self._wrapped,
        )

    def run_steps(self, num_steps: tf.Tensor) -> None:
        """Runs steps; see `orbit.StandardTrainer`.

        Raises:
            errors.ConfigValueError: The mode needs XLA, which can't compile the step.
        """
        try:
            super().run_steps(num_steps)
            if not self._is_searched:
                self._is_searched = True
                repeatability.warn_of_random_numbers(
                    self.train_loop.trace(), self.model, self.checkpoint
                )
        except tf.errors.InvalidArgumentError as error:
            if not self.execution.startswith("xla") or _NOT_COMPILABLE not in error.message:
                raise
            raise errors.ConfigValueError(
                f"`runtime.execution` is {self.execution}, but XLA can't compile the step. Use "
                "`graph`, or `auto`, which takes the fastest mode that is possible. "
                f"{error.message}"
            ) from error

    def create_eval_loop_fn(self, has_state: bool) -> Callable[..., Any]:
        """The loop that belongs to `eval_execution`."""
        if not self._evaluates_in_xla():
            return super().create_eval_loop_fn(has_state)
        needs_outputs = self.folds_outputs or self.eval_execution == "xla"
        loop = orbit.XlaEvalLoop(self.eval_step, needs_outputs=needs_outputs)
        self._counted_step = loop
        return loop

    @user_code.not_converted
    def run_step(self, step_fn: Callable[..., Any], *inputs: Any) -> Any:
        """Runs a function on all replicas, as a part of a step."""
        if self.execution != "xla" or self._strategy.num_replicas_in_sync > 1:
            return self._run_on_replicas(step_fn, *inputs)
        if step_fn not in self._compiled:
            run = functools.partial(self._run_on_replicas, step_fn)
            self._compiled[step_fn] = tf.function(
                lambda *args: run(*args), autograph=False, jit_compile=True
            )
        return self._compiled[step_fn](*inputs)

    def _with_own_threads(self, dataset_or_fn: Any) -> Any:
        num_threads = getattr(self.config.runtime, "dataset_num_private_threads", None)
        return tf_data_options.with_private_threads(dataset_or_fn, num_threads)

    def _evaluates_in_xla(self) -> bool:
        return (
            self.eval_execution.startswith("xla")
            and isinstance(self.eval_dataset, tf.data.Dataset)
            and self._eval_options.use_tf_function
            and not self._eval_options.use_tf_while_loop
            and not self.has_coordinator
        )

    def _run_on_replicas(self, step_fn: Callable[..., Any], *inputs: Any) -> Any:
        step_fn = user_code.converted(step_fn)
        return self._strategy.run(step_fn, args=inputs, options=self._runtime_options)
