"""The data of a task: training data that resume at any step, evaluation and prediction data."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeVar

import keras
import tensorflow as tf
from absl import logging

from official_lite.common import errors, flags
from official_lite.config import compatibility, epochs
from official_lite.core import base_task, config_definitions, step_checks
from official_lite.data import input_errors, length, position, replicas
from official_lite.execution import repeatability
from official_lite.execution.executors import Dataset
from official_lite.modeling import distributed_gradients, embedding_lookups, hyperparams
from official_lite.modeling.optimization import gradient_accumulator

__all__ = [
    "UnevenMicroBatchesError",
    "batch_sizes",
    "convert_counts",
    "count_micro_batches",
    "count_replicas",
    "micro_batch_data",
    "build_accumulator",
    "build_evaluation",
    "check",
    "predict_block",
    "predict_data",
    "resolve_epochs",
    "search_inputs",
    "training_inputs",
    "validation_steps",
    "TrainData",
    "TrainDataByTask",
]


_Params = TypeVar("_Params", bound=config_definitions.ExperimentConfig)


class UnevenMicroBatchesError(errors.ConfigValueError):
    """A batch that can't be divided evenly into the micro-batches of all replicas.

    Attributes:
        num_replicas: The number of replicas that share each micro-batch.
    """

    num_replicas: int = 1


def count_micro_batches(config: config_definitions.ExperimentConfig) -> int:
    """Return the number of micro-batches per update."""
    return config.trainer.grad_accum_steps


def count_replicas(config: config_definitions.ExperimentConfig) -> int:
    """Return the number of parts into which a global batch is divided."""
    num_replicas: int = tf.distribute.get_strategy().num_replicas_in_sync
    return config.trainer.virtual_replicas or num_replicas


def batch_sizes(config: config_definitions.ExperimentConfig) -> tuple[int, int]:
    """Return the examples per update, 0 if unknown, and the micro-batches into which it divides."""
    size = hyperparams.get_by_path(config, "task.train_data.global_batch_size")
    return size or 0, count_micro_batches(config)


def convert_counts(
    config: config_definitions.ExperimentConfig,
    build_inputs: Callable[..., Any],
    counts: Sequence[int],
    sizes: tuple[int, int],
) -> list[Fraction]:
    """Convert counts of micro-batches of other sizes to counts of the config's micro-batches.

    Args:
        config: The experiment's config.
        build_inputs: A function that builds one pass over the training data.
        counts: Numbers of micro-batches from the beginning of the data.
        sizes: The `batch_sizes` with which the micro-batches were counted.
    """
    own = batch_sizes(config)
    ratio = Fraction(own[1], sizes[1])
    before = now = None
    if sizes[0] and own[0]:
        ratio *= Fraction(sizes[0], own[0])
        if sizes != own:
            before, now = (_length_of_pass(config, build_inputs, *each) for each in (sizes, own))
    if not before or not now:
        return [count * ratio for count in counts]
    # The last batch of a pass may be partial or dropped, so convert whole passes separately.
    parts = [divmod(count, before) for count in counts]
    return [passes * now + min(rest * ratio, now) for passes, rest in parts]


def _length_of_pass(
    config: config_definitions.ExperimentConfig,
    build_inputs: Callable[..., Any],
    batch_size: int,
    micro_batches: int,
) -> Fraction | None:
    """Return the number of micro-batches in a pass over the data; None if it is unknown."""
    if _count(config):
        return None
    data: Any = config.task.train_data
    data = data.replace(global_batch_size=batch_size // micro_batches)
    # Set a position, because some sources require one.
    with position.begin_at(0, config.runtime.seed):
        dataset = build_inputs(data)
    return length.epoch_length(dataset) if hasattr(dataset, "cardinality") else None


def resolve_epochs(
    params: _Params,
    task: Any,
    mode: str,
    model_dir: str,
    *,
    divides_data: bool | None = None,
) -> _Params:
    """Convert the epochs and ratios of a config to steps, with the length of the training data.

    The modes `eval`, `test` and `predict` do not use the steps, so they never build the training
    data; see `config.epochs.resolve`.

    Args:
        params: The config of the experiment.
        task: The task, which builds the training data if the config does not give their length.
            A `MultiTask` has no training data of its own.
        mode: The mode of the run. If it does not train, the steps that an earlier run recorded are
            used, if there are any.
        model_dir: The model directory.
        divides_data: See `config.epochs.resolve`.

    Raises:
        errors.ConfigValueError: If the length of an epoch is unknown or contradictory.
        errors.DataError: If the training data can't be used.
    """
    parsed = flags.Mode.parse(mode)
    recorded = {} if parsed.trains else compatibility.recorded_steps(params, model_dir)
    data = getattr(params.task, "train_data", None)
    build_inputs: Any = getattr(task, "build_inputs", None)
    with step_checks.naming_the_block(build_inputs, "task.train_data", data):
        resolved: _Params = epochs.resolve(
            params,
            task,
            recorded=recorded,
            divides_data=divides_data,
            # `continuous_eval` ends with the checkpoint of the last training step.
            needs_steps=parsed.trains or parsed is flags.Mode.CONTINUOUS_EVAL,
        )
        return resolved


def micro_batch_data(
    config: config_definitions.ExperimentConfig, num_replicas: int
) -> config_definitions.DataConfig:
    """Return the config of the training data, with the batch size of one micro-batch.

    Args:
        config: The experiment's config.
        num_replicas: The number of replicas that share each micro-batch.

    Raises:
        errors.ConfigValueError: If there is no training data to divide.
        UnevenMicroBatchesError: If its batches can't be divided evenly.
    """
    data: Any = config.task.train_data
    count = count_micro_batches(config)
    if count == 1:
        return data
    if data is None:
        raise errors.ConfigValueError(
            f"`trainer.grad_accum_steps` is {count}, but `task.train_data` is missing, so there "
            "are no batches to divide. Set `task.train_data`, or set `trainer.grad_accum_steps` "
            "to 1."
        )
    if data.global_batch_size % (count * num_replicas):
        uneven = UnevenMicroBatchesError(
            f"`task.train_data.global_batch_size` is {data.global_batch_size}; expected a "
            f"multiple of {count * num_replicas}: `trainer.grad_accum_steps` ({count}) times the "
            f"number of replicas ({num_replicas})."
        )
        uneven.num_replicas = num_replicas
        raise uneven
    return data.replace(global_batch_size=data.global_batch_size // count)


def build_accumulator(
    config: config_definitions.ExperimentConfig,
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
) -> gradient_accumulator.GradientAccumulator | None:
    """Return the accumulator of micro-batch gradients; None if an update has one micro-batch.

    Raises:
        errors.ConfigValueError: If the strategy is a `ParameterServerStrategy`.
    """
    count = count_micro_batches(config)
    if count == 1:
        return None
    strategy = tf.distribute.get_strategy()
    if (
        isinstance(strategy, tf.distribute.ParameterServerStrategy)
        and strategy.cluster_resolver.cluster_spec().num_tasks("worker") > 1
    ):
        # The sums would be on the servers, where all workers would add to them.
        raise errors.ConfigValueError(
            f"`trainer.grad_accum_steps` is {count}, but gradient accumulation is not supported "
            "with several workers of `ParameterServerStrategy`. Set it to 1, and make "
            "`task.train_data.global_batch_size` smaller if a batch does not fit in memory."
        )
    has_lazy_rows = distributed_gradients.has_lazy_rows(optimizer)
    tables = embedding_lookups.tables(model) if has_lazy_rows else []
    return gradient_accumulator.GradientAccumulator(
        optimizer,
        model.trainable_variables,
        count,
        tables,
        are_summed=bool(config.trainer.virtual_replicas),
    )


_Inputs = Callable[..., Any]


def training_inputs(config: config_definitions.ExperimentConfig, build_inputs: _Inputs) -> _Inputs:
    """Wrap `build_inputs` to repeat the training data, or only their first batches to overfit."""
    count = _count(config)
    if not count:
        return length.repeat(position.keep(build_inputs))
    logging.info(
        "`trainer.overfit_batches` is set: the run trains repeatedly on the first %d batches of "
        "the training data, and also evaluates on them.",
        config.trainer.overfit_batches,
    )
    return length.first_batches(build_inputs, count, config.runtime.seed, repeat=True)


def build_evaluation(
    config: config_definitions.ExperimentConfig, build_inputs: _Inputs, distribute: _Inputs
) -> Dataset:
    """Build the distributed evaluation dataset.

    Args:
        config: The experiment's config.
        build_inputs: The `build_inputs` of the task.
        distribute: Distributes the dataset that a function returns for a `DataConfig`.
    """
    num_replicas = count_replicas(config)
    data: Any = config.task.validation_data
    # In the mode `test`, the test data take the place of the validation data.
    is_test = data is not None and data == hyperparams.get_by_path(config.task, "test_data")
    path = "task.test_data" if is_test else "task.validation_data"
    if count := _count(config):
        data = micro_batch_data(config, num_replicas)
        build = length.first_batches(build_inputs, count, config.runtime.seed, repeat=False)
    else:
        build = replicas.watch_batch_size(build_inputs, num_replicas)
    if config.trainer.validation_steps == -1:
        build = length.watch_cardinality(build)
    with step_checks.naming_the_block(build_inputs, path, data):
        dataset: Dataset = distribute(build, data)
    return dataset


def predict_block(task: config_definitions.TaskConfig) -> str:
    """Return the field of the task config with the data that the mode `predict` reads."""
    return "validation_data" if task.predict_data is None else "predict_data"


def predict_data(
    config: config_definitions.ExperimentConfig,
) -> config_definitions.DataConfig | None:
    """Return the config of the data to predict, changed to read all examples once and in order.

    Returns:
        The `DataConfig`; None if the task provides its own data.

    Raises:
        errors.ConfigValueError: If the data are read through the tf.data service, which does not
            preserve their order.
    """
    block = predict_block(config.task)
    data: config_definitions.DataConfig | None = getattr(config.task, block)
    if data is None:
        return None
    if data.enable_tf_data_service:
        raise errors.ConfigValueError(
            f"`task.{block}.enable_tf_data_service` is set, but the mode `predict` requires the "
            "examples in order, which the service does not preserve. Set it to false."
        )
    # Read the files one after another, and mix several sources in the same order each time.
    seed = config.runtime.seed if data.seed is None else data.seed
    return data.replace(
        is_training=False, drop_remainder=False, deterministic=True, cycle_length=1, seed=seed
    )


def validation_steps(config: config_definitions.ExperimentConfig) -> int:
    """Return the number of batches in an evaluation; -1 means all of them."""
    steps: int = config.trainer.validation_steps
    return steps if steps == -1 else _count(config) or steps


def check(config: config_definitions.ExperimentConfig, trainer: Any, *datasets: Any) -> None:
    """Check the methods of a trainer that fetch batches, and the datasets that it was given.

    Raises:
        errors.ConfigTypeError: If a method takes an `input_context`.
        errors.ConfigValueError: If `trainer.overfit_batches` is set and a dataset was given, whose
            first batches can't be selected.
    """
    if _count(config) and any(dataset is not None for dataset in datasets):
        raise errors.ConfigValueError(
            f"`trainer.overfit_batches` is {config.trainer.overfit_batches}, but a dataset was "
            "passed to the trainer, and its first batches can't be selected. Set the field to 0, "
            "or let `task.build_inputs` create the data."
        )
    for block in ("train_data", "validation_data", "test_data", "predict_data"):
        input_errors.remember_folder(hyperparams.get_by_path(config.task, f"{block}.input_path"))
    for name in ("next_train_inputs", "next_eval_inputs", "next_predict_inputs"):
        replicas.refuse_context(getattr(trainer, name), "the trainer")


def _count(config: config_definitions.ExperimentConfig) -> int:
    """Return the number of micro-batches to overfit; 0 if `trainer.overfit_batches` is off."""
    batches: int = config.trainer.overfit_batches
    return batches * count_micro_batches(config)


def search_inputs(build_inputs: _Inputs) -> _Inputs:
    """Wrap `build_inputs` to warn once about random numbers that a resumed run would not repeat."""
    is_searched = False

    @functools.wraps(build_inputs)
    def build(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_searched
        dataset = build_inputs(*args, **kwargs)
        if isinstance(dataset, tf.data.Dataset) and tf.executing_eagerly() and not is_searched:
            is_searched = True
            repeatability.warn_of_random_inputs(dataset)
        return dataset

    return build


class TrainData:
    """Builder of training data that begins with the batch that training would read next.

    Args:
        config: The experiment's config.
        build_inputs: The `build_inputs` of the task.
        distribute: A function that distributes the result of `build_inputs` over the replicas,
            given `build_inputs` and a `DataConfig`.
        task_name: The name of the task, if there are several.

    Attributes:
        batches_read: The number of batches that the steps have read, counted when they are read,
            int64. It is saved in the checkpoint. It stays 0 if the loop does not count batches, for
            example on the workers of a parameter server.
        skipped: The number of batches that were skipped, int64. It is saved in the checkpoint.
        micro_batches: The number of micro-batches per update for which batches were counted, int64.
            It is saved in the checkpoint, because a resumed run may use a different
            number of micro-batches.
        batch_size: The number of examples per update for which batches were counted, int64; 0 if it
            is unknown. It is saved in the checkpoint for the same reason.
        is_kept: Whether the most recently built data started at the requested position.
    """

    def __init__(
        self,
        config: config_definitions.ExperimentConfig,
        build_inputs: Callable[..., tf.data.Dataset],
        distribute: Callable[..., Dataset],
        task_name: str = "",
    ) -> None:
        self._config = config
        self._what = f"training data of the task {task_name}" if task_name else "training data"
        self._block = f"{task_name or 'task'}.train_data"
        self._build_inputs = replicas.watch_batch_size(
            training_inputs(config, search_inputs(build_inputs)), count_replicas(config)
        )
        self._build_one_pass = build_inputs
        self._distribute = distribute
        prefix = f"{task_name}/" if task_name else ""
        self.batches_read = _create_counter(f"{prefix}batches_read")
        # The number of batches read before the checkpoint, if the checkpoint does not contain this
        # number.
        self._uncounted = 0
        self.skipped = _create_counter("skipped_batches")
        self.micro_batches = _create_counter("micro_batches")
        self.micro_batches.assign(count_micro_batches(config))
        self.batch_size = _create_counter("batch_size")
        self.batch_size.assign(batch_sizes(config)[0])
        self.is_kept = False
        self._has_warned = False

    @property
    def variables(self) -> dict[str, tf.Variable]:
        """The variables that store the position, by their names in a checkpoint."""
        return {
            "batches_read": self.batches_read,
            "skipped_batches": self.skipped,
            "micro_batches": self.micro_batches,
            "batch_size": self.batch_size,
        }

    @property
    def num_skipped(self) -> int:
        """The number of batches that were skipped, counted in the micro-batches of this run."""
        self._convert_counts()
        return int(self.skipped.numpy())

    def position(self, step: int) -> int:
        """Return the number of batches that were read or skipped in `step` steps."""
        self._convert_counts()
        counted = int(self.batches_read.numpy())
        read = counted + self._uncounted if counted else self._expected(step)
        return read + int(self.skipped.numpy())

    def build(self) -> Dataset:
        """Build the data from its beginning; reading it does not advance any other iterator."""
        return self._build_at(0)

    def build_at(self, step: int, *, is_counted: bool = True) -> Dataset:
        """Build the data that training reads after `step` steps.

        A source that can't start at that position starts from its beginning.

        Args:
            step: The number of steps.
            is_counted: Whether the loop counts the batches that it reads.
        """
        if not is_counted:
            # Reset a count that was restored from a run that counts batches. This run does not
            # count them, so the count in its next checkpoint would be wrong.
            self.batches_read.assign(0)
        earlier_size = int(self.batch_size.numpy())
        if earlier_size not in (0, batch_sizes(self._config)[0]):
            epochs.warn_of_batch_size(self._config, step, earlier_size)
        self._convert_counts()
        # If there is no batch count, as after restoring a checkpoint of an older version, compute
        # the count from the step.
        self._uncounted = 0 if int(self.batches_read.numpy()) else self._expected(step)
        batch = int(self.batches_read.numpy()) + self._uncounted + int(self.skipped.numpy())
        dataset = self._build_at(batch)
        if self.is_kept:
            logging.info("The training data resume at batch %d.", batch)
        return dataset

    def skip(self, count: int) -> None:
        """Skip the next batches in all data that are built after this call."""
        self.skipped.assign(self.num_skipped + count)

    @contextlib.contextmanager
    def keeping_position(self, get_step: Callable[[], int]) -> Iterator[None]:
        """Enter a context in which a restore does not change which batch is read next.

        The batches that were read since the restored checkpoint then count as skipped.

        Args:
            get_step: A function that returns the current step.
        """
        batch = self.position(get_step())
        yield
        self.skip(batch - self.position(get_step()))

    def settle(self) -> None:
        """Complete the count after the first steps that follow a checkpoint without a count."""
        if self._uncounted and int(self.batches_read.numpy()):
            self.batches_read.assign_add(self._uncounted)
            self._uncounted = 0

    def warn_of_lost_position(self, step: int, *, is_given: bool) -> None:
        """Warn once if the position is lost when a run resumes.

        At the start of a run, the message about data that the task builds is only informational,
        because the run may be too short to be interrupted.

        Args:
            step: The step from which the run resumes; 0 at the start of a run.
            is_given: Whether the data were passed to the trainer, instead of built by the task.
        """
        if self._has_warned or (self.is_kept and not is_given):
            return
        self._has_warned = True
        because = "they were passed to the trainer as a dataset"
        remedy = "let `task.build_inputs` build them with a source that keeps the position"
        if not is_given:
            because = "`build_inputs` does not keep the position"
            remedy = "use a source that keeps the position"
        happens = f"restart from the beginning at step {step}"
        if not step:
            happens = "will start again from the first batch if this run is interrupted and resumed"
        logging.log(
            logging.WARNING if step or is_given else logging.INFO,
            "The %s %s, because %s. The result will differ from an uninterrupted run. To prevent "
            "this, %s. See docs/resume.md.",
            self._what,
            happens,
            because,
            remedy,
        )

    def _convert_counts(self) -> None:
        """Convert batch counts that were saved with micro-batches of another size, rounded up."""
        saved = int(self.batch_size.numpy()), int(self.micro_batches.numpy())
        own = batch_sizes(self._config)
        if saved == own:
            return
        read, skipped = int(self.batches_read.numpy()), int(self.skipped.numpy())
        if read + skipped:
            exact, exact_skipped = convert_counts(
                self._config, self._build_one_pass, (read + skipped, skipped), saved
            )
            total = math.ceil(exact)
            # A positive count of batches read has to stay positive, because 0 means that the count
            # is unknown.
            read = max(min(read, 1), total - math.ceil(exact_skipped))
            self.batches_read.assign(read)
            self.skipped.assign(total - read)
            if exact != total:
                logging.warning(
                    "The %s have been read up to batch %.2f of the current size. The position is "
                    "rounded up to a whole batch, so the examples between are not read.",
                    self._what,
                    float(exact),
                )
        self.batch_size.assign(own[0])
        self.micro_batches.assign(own[1])

    def _expected(self, step: int) -> int:
        return step * count_micro_batches(self._config)

    def _build_at(self, batch: int) -> Dataset:
        data = micro_batch_data(self._config, count_replicas(self._config))
        named = step_checks.naming_the_block(self._build_inputs, self._block, data)
        with named, position.begin_at(batch, self._config.runtime.seed) as begin:
            dataset = self._distribute(self._build_inputs, data)
        self.is_kept = begin.is_kept
        return dataset


class TrainDataByTask:
    """The training data of several tasks, each of which continues at its own batch.

    Use it like `TrainData`. Datasets and variables are in dictionaries by task.

    Args:
        tasks: The tasks by name.
        config: The config of the experiment, whose `task` is replaced by each of the tasks.
        distribute: See `TrainData`.
        steps: The number of steps that have read the data of each task. None if each step reads the
            data of all tasks.
    """

    def __init__(
        self,
        tasks: Mapping[str, base_task.Task],
        config: config_definitions.ExperimentConfig,
        distribute: Callable[..., Dataset],
        steps: Mapping[str, tf.Variable] | None = None,
    ) -> None:
        self._steps = steps
        self._parts = {}
        for name, task in tasks.items():
            own = config_definitions.ExperimentConfig(
                task=task.task_config, trainer=config.trainer, runtime=config.runtime
            )
            self._parts[name] = TrainData(own, task.build_inputs, distribute, name)

    @property
    def variables(self) -> dict[str, dict[str, tf.Variable]]:
        """The variables that store the positions, by their names in a checkpoint and by task."""
        by_task = {name: part.variables for name, part in self._parts.items()}
        kinds = next(iter(by_task.values()))
        return {kind: {name: each[kind] for name, each in by_task.items()} for kind in kinds}

    @property
    def num_skipped(self) -> int:
        """The number of batches of all tasks that were skipped."""
        return sum(part.num_skipped for part in self._parts.values())

    def position(self, step: int) -> int:
        """Return the number of batches of all tasks that were read or skipped in `step` steps."""
        return sum(part.position(self._step(name, step)) for name, part in self._parts.items())

    def build(self) -> dict[str, Dataset]:
        """Build the data of each task from its beginning."""
        return {name: part.build() for name, part in self._parts.items()}

    def build_at(self, step: int, *, is_counted: bool = True) -> dict[str, Dataset]:
        """Build the data that training reads after `step` steps."""
        return {
            name: part.build_at(self._step(name, step), is_counted=is_counted)
            for name, part in self._parts.items()
        }

    def skip(self, count: int) -> None:
        """Skip the next batches of each task."""
        for part in self._parts.values():
            part.skip(count)

    @contextlib.contextmanager
    def keeping_position(self, get_step: Callable[[], int]) -> Iterator[None]:
        """Enter a context in which a restore does not change which batches are read next."""
        with contextlib.ExitStack() as stack:
            for name, part in self._parts.items():
                of_task = functools.partial(self._current_step, name, get_step)
                stack.enter_context(part.keeping_position(of_task))
            yield

    def settle(self) -> None:
        """Complete the counts after the first steps that follow a checkpoint without counts."""
        for part in self._parts.values():
            part.settle()

    def warn_of_lost_position(self, step: int, *, is_given: bool) -> None:
        """Warn once for each task whose position is lost when a run resumes."""
        for part in self._parts.values():
            part.warn_of_lost_position(step, is_given=is_given)

    def _step(self, name: str, step: int) -> int:
        return step if self._steps is None else int(self._steps[name].numpy())

    def _current_step(self, name: str, get_step: Callable[[], int]) -> int:
        return self._step(name, get_step())


def _create_counter(name: str) -> tf.Variable:
    return tf.Variable(
        0,
        dtype=tf.int64,
        name=name,
        trainable=False,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )
