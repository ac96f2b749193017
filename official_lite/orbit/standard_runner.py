"""A trainer and an evaluator that provide the inner loop; subclasses define the step."""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf
from absl import logging

from official_lite.common import errors, goodput, nests, user_code
from official_lite.data import input_errors, tf_data_options
from official_lite.orbit import runner
from official_lite.orbit.utils import loop_fns


class TrainLoop(Protocol):
    """Runs training steps on data that it holds."""

    def __call__(self, num_steps: tf.Tensor) -> Any:
        """Run `num_steps` steps (an int32 scalar) and return the outputs of the last step.

        Raises:
            StopIteration, tf.errors.OutOfRangeError: The data ended before `num_steps` steps.
        """

    def trace(self) -> Sequence[Any]:
        """Trace the steps, unless they have been traced already, without running them.

        Returns:
            The concrete functions that run the steps. Empty if nothing is compiled.
        """

    def retrace(self) -> None:
        """Discard the trace because the step has changed. The position in the data stays."""

    def read(self, dataset: tf.data.Dataset) -> None:
        """Continue from the beginning of another dataset of the same structure.

        Distributed datasets are not supported.
        """


class MeasuredLoop:
    """Base class of training loops whose first run counts as compilation in the goodput."""

    _has_run = False

    def __call__(self, num_steps: tf.Tensor) -> Any:
        if self._has_run:
            return self._run(num_steps)
        with goodput.measuring("compiling"):
            outputs = self._run(num_steps)
        self._has_run = True
        return outputs

    def _run(self, num_steps: tf.Tensor) -> Any:
        raise NotImplementedError


class IteratorLoop(MeasuredLoop):
    """Calls a loop function `(iterator, num_steps)` with an iterator over the data.

    Args:
        create_loop_fn: A function that creates one of `loop_fns`, compiled or not.
        dataset: A dataset, a distributed dataset, or a nested structure of them.
    """

    def __init__(self, create_loop_fn: Callable[[], loop_fns.LoopFn], dataset: Any) -> None:
        self._create_loop_fn = create_loop_fn
        self._loop_fn: Any = create_loop_fn()
        self._iterators = tf.nest.map_structure(make_iterator, dataset)
        self._bound: Any = None

    def _run(self, num_steps: tf.Tensor) -> Any:
        concrete = self.trace()
        if not concrete:
            return self._loop_fn(self._iterators, num_steps)
        return concrete[0](num_steps)

    def trace(self) -> Sequence[Any]:
        is_function = hasattr(self._loop_fn, "python_function")
        if not is_function or tf.config.functions_run_eagerly():
            return []
        if self._bound is None:
            # If an iterator is an argument of a `tf.function`, each call inspects the iterator's
            # type, which takes as long as a short step. Capturing the iterator avoids this.
            loop_fn, iterators = self._loop_fn.python_function, self._iterators

            @tf.function(input_signature=[tf.TensorSpec([], tf.int32)], autograph=False)
            def run(num_steps: tf.Tensor) -> Any:
                return user_code.converted(loop_fn)(iterators, num_steps)

            self._bound = run.get_concrete_function()
        return [self._bound]

    def retrace(self) -> None:
        self._loop_fn = self._create_loop_fn()
        self._bound = None
        self._has_run = False

    def read(self, dataset: tf.data.Dataset) -> None:
        exchange(self._iterators, dataset)


def make_iterator(dataset: Any) -> Any:
    """Return an iterator over a dataset or a distributed dataset."""
    return iter(tf_data_options.without_idle_autotuner(dataset))


def exchange(iterator: Any, dataset: tf.data.Dataset) -> None:
    """Point an iterator, which a graph may have captured, at the beginning of another dataset."""
    dataset = tf_data_options.without_idle_autotuner(dataset)
    variant = tf.data.experimental.to_variant(dataset)
    tf.raw_ops.MakeIterator(dataset=variant, iterator=iterator._iterator_resource)


@dataclasses.dataclass(frozen=True)
class StandardTrainerOptions:
    """How the training loop is executed.

    Attributes:
        use_tf_function: Whether to compile. If false, every step runs in Python.
        use_tf_while_loop: Whether to compile the whole loop rather than one step at a time.
            Requires `use_tf_function`.
        use_tpu_summary_optimization: Whether to compile the loop twice, with and without summaries.
            Requires `use_tf_while_loop`.
    """

    use_tf_function: bool = True
    use_tf_while_loop: bool = True
    use_tpu_summary_optimization: bool = False


class StandardTrainer(runner.AbstractTrainer, metaclass=abc.ABCMeta):
    """Trains with a compiled loop around `train_step`.

    ::

        train_loop_begin()          # eager; reset metrics here
        for _ in range(num_steps):  # compiled as the options specify
            train_step(iterator)
        return train_loop_end()     # eager; read metrics here

    `train` does all of this. A controller calls the three parts separately, so it can interrupt a
    reporting interval without resetting the metrics.

    Args:
        train_dataset: A `tf.data.Dataset`, a distributed dataset, or a nested structure of them.
        options: How to execute the loop.

    Attributes:
        last_step_outputs: The value that `train_step` returned in the last step. `None` if it
            returned nothing, or returned anything other than tensors in a compiled loop.

    Raises:
        errors.ConfigValueError: The options contradict one another.
    """

    last_step_outputs: Any = None
    _train_loop: TrainLoop | None = None
    _step_wrappers: tuple[Callable[[loop_fns.StepFn], loop_fns.StepFn], ...] = ()
    _fetch_wrappers: tuple[Callable[[loop_fns.StepFn], loop_fns.StepFn], ...] = ()

    def __init__(self, train_dataset: Any, options: StandardTrainerOptions | None = None) -> None:
        options = options or StandardTrainerOptions()
        _check_while_loop(options)
        if options.use_tpu_summary_optimization and not options.use_tf_while_loop:
            raise errors.ConfigValueError(
                "`use_tpu_summary_optimization=True` requires `use_tf_while_loop=True`."
            )
        self._train_options = options
        self._train_dataset = train_dataset

    def train(self, num_steps: tf.Tensor) -> runner.Output | None:
        """Run one reporting interval of `num_steps` steps, as the class docstring describes.

        Raises:
            errors.DataError: The data ended before `num_steps` steps.
        """
        self.train_loop_begin()
        self.run_steps(num_steps)
        return self.train_loop_end()

    def run_steps(self, num_steps: tf.Tensor) -> None:
        """Run `num_steps` steps in one call, without resetting or reporting anything.

        Raises:
            errors.DataError: The data ended before `num_steps` steps.
        """
        try:
            outputs = self.train_loop(_as_int32(num_steps))
        except loop_fns.END_OF_DATA as error:
            raise end_of_training_data(getattr(self, "global_step", None)) from error
        runner.set_untracked(self, last_step_outputs=outputs)

    @property
    def train_loop(self) -> TrainLoop:
        """Return the loop that runs the steps and holds the data. It is created on first access."""
        train_loop = self._train_loop
        if train_loop is None:
            train_loop = self.create_train_loop(self.train_dataset)
            self.use_train_loop(train_loop)
        return train_loop

    def use_train_loop(self, train_loop: TrainLoop | None) -> None:
        """Replace the training loop. `None` causes a new loop to be created on the next access."""
        runner.set_untracked(self, _train_loop=train_loop)

    def create_train_loop(self, dataset: Any) -> TrainLoop:
        """Create the training loop over `dataset`, by default with `create_train_loop_fn`.

        Override this method to change how steps are executed.
        """
        return IteratorLoop(self.create_train_loop_fn, dataset)

    def create_train_loop_fn(self) -> loop_fns.LoopFn:
        """Create the function `(iterator, num_steps)` that `create_train_loop` uses."""
        step = self.wrap_fetch(self.wrap_step(self.train_step))
        if (counts := self.batch_counts) is not None:
            step = loop_fns.count_batches(step, counts)
        if not self._train_options.use_tf_while_loop:
            return loop_fns.create_exact_loop_fn(_maybe_compiled(step, self._train_options))
        loop_fn = loop_fns.create_tf_while_loop_fn(step)
        if self._train_options.use_tpu_summary_optimization:
            return loop_fns.LoopFnWithSummaries(loop_fn)
        return tf.function(loop_fn)

    def train_loop_begin(self) -> None:
        """Begin a reporting interval. Runs eagerly, before the iterator is created."""

    def wrap_train_step(self, wrapper: Callable[[loop_fns.StepFn], loop_fns.StepFn]) -> None:
        """Run each step as `wrapper(train_step)`. A step that was already traced is traced again.

        Use this for code that must act while the step is being traced.
        """
        runner.set_untracked(self, _step_wrappers=(*self._step_wrappers, wrapper))
        self._retrace_train_step()

    def wrap_train_fetch(self, wrapper: Callable[[loop_fns.StepFn], loop_fns.StepFn]) -> None:
        """Wrap the function that fetches batches from the iterator, which is usually the step.

        A loop that fetches the batches of many steps at once wraps only this fetch. Use this for
        code that needs the iterator.
        """
        runner.set_untracked(self, _fetch_wrappers=(*self._fetch_wrappers, wrapper))
        self._retrace_train_step()

    @abc.abstractmethod
    def train_step(self, iterator: Any) -> Any:
        """Run one step in the cross-replica context; implementations call `strategy.run`.

        Args:
            iterator: An iterator, or a nested structure of them that matches `train_dataset`.

        Returns:
            Nothing, or tensors to expose as `last_step_outputs`.
        """

    def train_loop_end(self) -> runner.Output | None:
        """End a reporting interval and return the values to report. Runs eagerly."""
        return None

    def _retrace_train_step(self) -> None:
        if self._train_loop is not None:
            self._train_loop.retrace()

    def wrap_step(self, step_fn: loop_fns.StepFn) -> loop_fns.StepFn:
        """Return a step function wrapped in all wrappers passed to `wrap_train_step`."""
        for wrapper in self._step_wrappers:
            step_fn = wrapper(step_fn)
        return step_fn

    def wrap_fetch(self, fetch_fn: loop_fns.StepFn) -> loop_fns.StepFn:
        """Return a function that fetches, wrapped in all wrappers passed to `wrap_train_fetch`."""
        for wrapper in self._fetch_wrappers:
            fetch_fn = wrapper(fetch_fn)
        return fetch_fn

    @property
    def batches_per_step(self) -> int:
        """The number of batches that a step fetches."""
        return 1

    @property
    def batch_counts(self) -> Any:
        """The int64 variables that count the batches read, in the structure of `train_dataset`.

        `None` if this trainer does not count them.
        """
        return None

    @property
    def train_options(self) -> StandardTrainerOptions:
        """Return the options of the training loop."""
        return self._train_options

    @property
    def train_dataset(self) -> Any:
        """Return the training data. Setting this property discards the current iterator."""
        return self._train_dataset

    @train_dataset.setter
    def train_dataset(self, train_dataset: Any) -> None:
        self._train_dataset = train_dataset
        self.use_train_loop(None)


@dataclasses.dataclass(frozen=True)
class StandardEvaluatorOptions:
    """How the evaluation loop is executed.

    Attributes:
        use_tf_function: Whether to compile `eval_step`.
        use_tf_while_loop: Whether to compile the whole loop. Requires `use_tf_function`, and a
            number of steps that the data can provide.
        recreate_iterator_for_each_eval: Whether each evaluation starts from the first example. If
            false, it continues where the previous evaluation stopped, or begins again if the data
            have ended. With `use_tf_while_loop`, the evaluation that reaches the end fails.
    """

    use_tf_function: bool = True
    use_tf_while_loop: bool = False
    recreate_iterator_for_each_eval: bool = True


class StandardEvaluator(runner.AbstractEvaluator, metaclass=abc.ABCMeta):
    """Evaluates with a loop around `eval_step`.

    ::

        state = eval_begin()            # eager; reset metrics here
        for _ in range(num_steps):
            outputs = eval_step(iterator)
            state = eval_reduce(state, outputs)
        return eval_end(state)          # eager; read metrics here

    Args:
        eval_dataset: A `tf.data.Dataset`, a distributed dataset, or a nested structure of them.
        options: How to execute the loop.

    Raises:
        errors.ConfigValueError: The options contradict one another.
    """

    def __init__(self, eval_dataset: Any, options: StandardEvaluatorOptions | None = None) -> None:
        options = options or StandardEvaluatorOptions()
        _check_while_loop(options)
        self._eval_options = options
        self._eval_dataset = eval_dataset
        self._eval_iter: Any = None
        self._eval_loop_fn: Any = None
        # The object that counts the steps in its attribute `calls`; None if steps are not counted.
        self._counted_step: Any = None

    def evaluate(self, num_steps: tf.Tensor) -> runner.Output | None:
        """Run one evaluation of `num_steps` steps, or fewer if the data end.

        Args:
            num_steps: The number of steps; -1 means all the data.

        Returns:
            The result of `eval_end`.

        Raises:
            errors.ConfigValueError: `use_tf_while_loop` is set, and either `num_steps` is -1, or
                `eval_reduce` needs the outputs of the steps and there is no state.
            errors.DataError: The data are empty, or they end early in a compiled loop.
        """
        if self._eval_options.use_tf_while_loop and num_steps == -1:
            raise errors.ConfigValueError(
                "A compiled evaluation loop can't run to the end of the data (`num_steps=-1`). "
                "Pass the number of steps, or set `use_tf_while_loop=False`."
            )
        state = self.eval_begin()
        self.check_state(state)
        if self._eval_loop_fn is None:
            self._eval_loop_fn = self.create_eval_loop_fn(has_state=state is not None)
            if hasattr(self._eval_loop_fn, "calls"):
                self._counted_step = self._eval_loop_fn
        continues = self._eval_iter is not None
        state = self._run_eval_loop(num_steps, state)
        if continues and self.steps_run == 0:
            # The previous evaluation read exactly the rest of the data, so begin again.
            self._eval_iter = None
            state = self._run_eval_loop(num_steps, state)
        self._check_steps_run(int(num_steps))
        return self.eval_end() if state is None else self.eval_end(state)

    def create_eval_loop_fn(self, has_state: bool) -> loop_fns.LoopFn:
        """Create the function `(iterator, num_steps, state, reduce_fn)` that `evaluate` calls.

        A compiled loop without a state takes only the first two arguments, because a
        `tf.while_loop` cannot carry `None`.
        """
        if not self._eval_options.use_tf_while_loop:
            step_fn = _maybe_compiled(self.eval_step, self._eval_options)
            self._counted_step = loop_fns.CountedStep(step_fn)
            return loop_fns.create_loop_fn(self._counted_step)
        if has_state:
            return tf.function(loop_fns.create_tf_while_loop_fn_with_state(self.eval_step))
        return tf.function(loop_fns.create_tf_while_loop_fn(self.eval_step))

    def eval_begin(self) -> Any:
        """Begin an evaluation. Runs eagerly, before the iterator is created.

        Returns:
            The initial state for `eval_reduce`.
        """
        return None

    @abc.abstractmethod
    def eval_step(self, iterator: Any) -> Any:
        """Run one step in the cross-replica context; implementations call `strategy.run`.

        Args:
            iterator: An iterator, or a nested structure of them that matches `eval_dataset`.

        Returns:
            The step outputs that `eval_reduce` receives.
        """

    def eval_reduce(self, state: Any = None, step_outputs: nests.Nest = None) -> Any:
        """Fold the outputs of a step into the state and return the new state.

        This method runs in Python unless the loop is compiled. Use it for results that metrics
        cannot compute, such as a list of all predictions.
        """
        return None

    def eval_end(self, *args: Any) -> runner.Output | None:
        """End an evaluation and return the values to report. Runs eagerly.

        Args:
            *args: The final state, if there is one.
        """
        return None

    @property
    def eval_options(self) -> StandardEvaluatorOptions:
        """Return the options of the evaluation loop."""
        return self._eval_options

    @property
    def folds_outputs(self) -> bool:
        """Return whether the host needs the outputs of each evaluation step."""
        return type(self).eval_reduce is not StandardEvaluator.eval_reduce

    def check_state(self, state: Any) -> None:
        """Check that no outputs are lost: a compiled loop without a state does not reduce them.

        Args:
            state: The result of `eval_begin`.

        Raises:
            errors.ConfigValueError: Outputs would be lost.
        """
        if self._eval_options.use_tf_while_loop and state is None and self.folds_outputs:
            raise errors.ConfigValueError(
                "A compiled evaluation loop (`trainer.eval_tf_while_loop`, `use_tf_while_loop`) "
                "passes no outputs to `aggregate_logs` or `eval_reduce`, but one of these is "
                "overridden. Set the option to false, or return the initial state from "
                "`eval_begin`."
            )

    @property
    def eval_dataset(self) -> Any:
        """Return the evaluation data. Setting this property discards the current iterator."""
        return self._eval_dataset

    @eval_dataset.setter
    def eval_dataset(self, eval_dataset: Any) -> None:
        self._eval_dataset = eval_dataset
        self._eval_iter = None

    def _run_eval_loop(self, num_steps: tf.Tensor, state: Any) -> Any:
        if self._eval_iter is None:
            self._eval_iter = tf.nest.map_structure(make_iterator, self.eval_dataset)
        iterator = self._eval_iter
        if self._eval_options.recreate_iterator_for_each_eval:
            self._eval_iter = None
        if self._counted_step is not None:
            self._counted_step.calls = 0
        try:
            if self._eval_options.use_tf_while_loop and state is None:
                self._eval_loop_fn(iterator, num_steps)
            else:
                state = self._eval_loop_fn(
                    iterator, num_steps, state=state, reduce_fn=self.eval_reduce
                )
        except loop_fns.END_OF_DATA as error:
            self._eval_iter = None
            raise errors.DataError(
                f"The evaluation data ended before {int(num_steps)} steps. Use fewer steps, or "
                "set `use_tf_while_loop=False`, which allows an evaluation to end early."
            ) from error
        except tf.errors.OpError as error:
            input_errors.raise_if_of_data(error, None, "evaluation")
            raise
        # A subclass may create a loop function that does not count its steps. The number of
        # completed steps is then unknown.
        self.steps_run = self._counted_step.calls if self._counted_step else None
        return state

    def _check_steps_run(self, steps_wanted: int) -> None:
        if self.steps_run in (None, steps_wanted):
            return
        # The iterator is exhausted, so the next evaluation needs a new iterator.
        self._eval_iter = None
        if self.steps_run == 0:
            raise errors.DataError(
                "The evaluation data are empty. Check that they contain examples and, if "
                "`drop_remainder` is True, that the batch size does not exceed their number."
            )
        if steps_wanted != -1:
            logging.warning(
                "The evaluation data ended after %d of %d steps.", self.steps_run, steps_wanted
            )


def is_splittable(trainer: runner.AbstractTrainer) -> bool:
    """Return whether the parts of `trainer.train` can be called separately.

    They cannot if a subclass overrides `train`, which may then do more than call the parts.
    """
    return isinstance(trainer, StandardTrainer) and type(trainer).train is StandardTrainer.train


def end_of_training_data(global_step: Any) -> errors.DataError:
    """Build the error for training data that end too early.

    Args:
        global_step: The variable that counts the steps, or `None` if unknown.
    """
    step = None if global_step is None else int(global_step.numpy())
    if step == 0:
        return errors.DataError(
            "The training data ended before the first step: they do not contain enough batches "
            "for one step. Check that the data are not empty and, if `drop_remainder` is True, "
            "that they contain enough examples for a batch."
        )
    where = "" if step is None else f" at step {step}"
    return errors.DataError(
        f"The training data ended{where}, before training was complete. Repeat the dataset "
        "(`dataset.repeat()`), or train for fewer steps. A function passed to `from_generator` "
        "must return a new generator on each call, or the data can be read only once."
    )


def _as_int32(num_steps: Any) -> tf.Tensor:
    if getattr(num_steps, "dtype", None) == tf.int32:
        return num_steps
    return tf.cast(num_steps, tf.int32)


def _check_while_loop(options: StandardTrainerOptions | StandardEvaluatorOptions) -> None:
    if options.use_tf_while_loop and not options.use_tf_function:
        raise errors.ConfigValueError("`use_tf_while_loop=True` requires `use_tf_function=True`.")


def _maybe_compiled(
    step_fn: loop_fns.StepFn, options: StandardTrainerOptions | StandardEvaluatorOptions
) -> loop_fns.StepFn:
    step_fn = loop_fns.guard_step(step_fn)
    return tf.function(step_fn) if options.use_tf_function else step_fn
