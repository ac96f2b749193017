"""A trained run, opened in Python: its config, task, model, weights, example inputs and record.

Nothing is written to the model directory, and no data is read unless it is needed to build the
model or as an example.
"""

import contextlib
import dataclasses
import functools
import inspect
import os
import random
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from official_lite.checkpoint import chain, commit, fallback, model_state, warm_start
from official_lite.common import errors, files, keras_variables, nests, plugins
from official_lite.core import model_building, step_checks
from official_lite.modeling import hyperparams
from official_lite.modeling.multitask import base_trainer, multitask
from official_lite.modeling.optimization import ema_optimizer, optimizer_factory
from official_lite.pipeline.stages import Build, ExperimentContext, find_stages
from official_lite.run import run_reading, runtime
from official_lite.tools import sources

_CHOICES = ("best", "latest")
# The maximum number of example inputs. More examples would only take longer.
_MAX_EXAMPLES = 8
# The size of unknown dimensions in random inputs.
_OPEN_SIZE = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedRun:
    """A trained run.

    Attributes:
        params: The config that the run was trained with, typed and resolved.
        task: The task, such as a `Task` or a `MultiTask`.
        model: The model, with the weights of `checkpoint`. If the optimizer keeps a moving average,
            these are the averaged weights, as in an evaluation.
        checkpoint: The prefix of the checkpoint.
        step: The global step of the checkpoint.
        record: What the run has written: its metrics, status and environment.
    """

    params: Any
    task: Any
    model: keras.Model
    checkpoint: str
    step: int
    record: run_reading.Run


def load_run(
    path: str, *, checkpoint: str = "", experiment: str = "", trust: bool = False
) -> LoadedRun:
    """Open a trained run on one device; nothing is written to it.

    Building the model sets the seeds of TensorFlow and Keras to the seed of the run.

    The experiment must be registered: import the module that registers it first. A module
    `registry_imports` in the current directory is imported by this function. ::

        run = official_lite.load_run("/tmp/digits")
        scores = run.model(images)

    Args:
        path: A model directory, or a checkpoint or a directory of checkpoints in it, such as
            `RUN/ckpt-500` or `RUN/best_ckpt`.
        checkpoint: For a model directory: `best` or `latest`. By default the best checkpoint if the
            run keeps one, and otherwise the latest.
        experiment: The experiment, if `run.json` does not name it or names code.
        trust: Whether the config of the run may name code that is not registered, such as
            `trainer.name: my_package:MyTrainer`. Use it for your own runs.

    Raises:
        errors.ConfigError: There is no run at `path`, its experiment is not registered, its config
            can't be read or names code, or `checkpoint` is not one of these values.
        errors.CheckpointError: There is no such checkpoint, or it is damaged or does not match the
            model of the config.
    """
    if checkpoint and checkpoint not in _CHOICES:
        raise errors.ConfigValueError(
            f"`checkpoint` is {checkpoint!r}; expected 'best' or 'latest'. To load another "
            "checkpoint, pass it as `path`."
        )
    path = files.expand_home(path)
    outside = plugins.restriction()
    random_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        source = sources.read_run_params(path, experiment, trust=trust)
        with built(source.params) as (ctx, _):
            # Choose the checkpoint only now, because a running training job may remove checkpoints
            # while the model is built.
            record = run_reading.read_run(source.run_dir)
            prefix = _choose_checkpoint(path, source.run_dir, record, checkpoint)
            load_weights(ctx, prefix)
    finally:
        plugins.restrict(outside)
        random.setstate(random_state)
        np.random.set_state(numpy_state)
    logging.info("Loaded the weights of %s.", prefix)
    return LoadedRun(
        params=source.params,
        task=ctx.require("task"),
        model=ctx.require("model"),
        checkpoint=prefix,
        step=commit.step_of(prefix),
        record=record,
    )


def _choose_checkpoint(path: str, run_dir: str, record: run_reading.Run, choice: str) -> str:
    if os.path.normpath(path) != os.path.normpath(run_dir):
        return find_checkpoint(path)
    if choice == "latest" or (not choice and record.best is None):
        return find_checkpoint(run_dir)
    if record.best is None or record.best.path is None:
        state = "keeps no" if record.best is None else "has lost the files of its"
        raise errors.CheckpointError(
            f"The run in {run_dir} {state} best checkpoint. Pass checkpoint='latest'."
        )
    return record.best.path


@contextlib.contextmanager
def built(params: Any, mode: str = "") -> Iterator[tuple[ExperimentContext, Build]]:
    """Build task, model and optimizer as in the config's `build` stage.

    Args:
        params: The config.
        mode: Purpose of a trainer built from these parts: `train`, `eval`, or empty for neither.

    Yields:
        The context with task, model and optimizer, and the `build` stage.
    """
    params = params.replace(runtime={"distribution_strategy": "off"})
    stage = find_stages(params)["build"]
    with tempfile.TemporaryDirectory() as directory:
        ctx = ExperimentContext(
            params=params, mode=mode, model_dir=directory, strategy=tf.distribute.get_strategy()
        )
        build: Any = stage(stage.view(ctx))
        with ctx.exit_stack:
            ctx.exit_stack.enter_context(runtime.seed_and_precision(params.runtime))
            ctx.task = build.make_task(ctx)
            ctx.model = build.make_model(ctx)
            ctx.optimizer = build.make_optimizer(ctx)
            _build_models(ctx)
            yield ctx, build


def evaluation_data(ctx: ExperimentContext) -> tf.data.Dataset:
    """Return data with example inputs: the validation data, or else the training data."""
    return _evaluation_data(ctx.require("task"), ctx.params.task)


def _evaluation_data(task: Any, config: Any) -> tf.data.Dataset:
    data = hyperparams.get_by_path(config, "validation_data")
    data = data or hyperparams.get_by_path(config, "train_data")
    dataset: tf.data.Dataset = task.build_inputs(data)
    return dataset


def _build_models(ctx: ExperimentContext) -> None:
    """Create the variables of the model, or of the model of each task."""
    task, model = ctx.require("task"), ctx.require("model")
    if not isinstance(task, multitask.MultiTask):
        parts = [(task, ctx.params.task, model)]
    else:
        parts = [
            (one, one.task_config, base_trainer.task_model(model, name))
            for name, one in task.tasks.items()
        ]
    for one, config, part in parts:
        if not model_building.has_variables(part):
            spec = _evaluation_data(one, config).element_spec
            metrics = step_checks.build_metrics(one, training=False)
            model_building.build_by_task(part, one, spec, metrics)
    for one, config, part in parts:
        data = hyperparams.get_by_path(config, "train_data")
        if data is not None:
            find_spec = functools.partial(_find_spec, one, data)
            model_building.build_for_training(part, one, find_spec, ctx.require("optimizer"))


def _find_spec(task: Any, data: Any) -> nests.Nest:
    return task.build_inputs(data).element_spec


def find_checkpoint(path: str) -> str:
    """Return the checkpoint at a path, or the latest one in a folder.

    Raises:
        errors.CheckpointError: There is none.
    """
    found = warm_start.find_checkpoint(path)
    if found is None:
        raise errors.CheckpointError(
            f"No checkpoint found at {path}. Expected a directory of checkpoints, or a path such "
            f"as {os.path.join(path, 'ckpt-1000')}."
        )
    return found


def load_weights(ctx: ExperimentContext, prefix: str) -> None:
    """Load the weights that an evaluation of the checkpoint would use.

    These are the averaged weights if the optimizer keeps a moving average.

    Raises:
        errors.CheckpointError: The checkpoint is damaged or belongs to another model.
    """
    model = ctx.require("model")
    read_checkpoint(tf.train.Checkpoint(**model_state.weight_items(model)), prefix)
    if ctx.optimizer is None:
        return
    ema_optimizer.evaluate_averages(ctx.optimizer)
    if not ema_optimizer.keeps_averages(ctx.optimizer):
        return
    optimizer = optimizer_factory.prepare_optimizer(ctx.optimizer, model)
    # A weight that was frozen in training has no average in the checkpoint, so use the weight
    # itself.
    optimizer_factory.follow_weights(optimizer)
    # Match the averages by their weights. By position, they would not match if the run froze some
    # weights, or if it scaled the loss for a precision that is not used here.
    loaded = warm_start.load_averages(optimizer, model, prefix, is_whole=True)
    _require_averages(optimizer, loaded, ctx.params.trainer.freeze, prefix)
    ema_optimizer.swap_weights(optimizer)


def _require_averages(
    optimizer: keras.optimizers.Optimizer,
    loaded: Sequence[Any],
    freeze: Sequence[str],
    prefix: str,
) -> None:
    known = {id(average) for average in loaded}
    for weight, average in ema_optimizer.weights_and_averages(optimizer):
        path = keras_variables.path_of(weight)
        is_frozen = any(re.search(pattern, path) for pattern in freeze)
        if id(average) not in known and not is_frozen:
            raise errors.CheckpointError(
                f"{prefix} has no average of the weight `{path}`, but the optimizer of the config "
                "averages it. Use the config that the checkpoint was trained with."
                f"{chain.config_of_run(prefix)}"
            )


def read_checkpoint(
    checkpoint: tf.train.Checkpoint, prefix: str, *, optional: Iterable[Any] = ()
) -> None:
    """Read all objects of a `tf.train.Checkpoint` from the files at a prefix.

    Args:
        checkpoint: The objects to restore.
        prefix: Prefix of the files.
        optional: Variables that may be missing in the files.

    Raises:
        errors.CheckpointError: The files are damaged, lack a variable, contain one with another
            shape, or no longer exist.
    """
    damage = commit.find_damage(prefix)
    if damage is not None:
        raise errors.CheckpointError(f"{prefix} is damaged: {damage}. Use another checkpoint.")
    if not files.exists(f"{prefix}.index"):
        raise errors.CheckpointError(
            f"{prefix} no longer exists; a training run that is still in progress probably removed "
            "it. Use a later checkpoint, or train with a larger `trainer.max_to_keep`."
        )
    try:
        fallback.restore(checkpoint, prefix, optional=optional, is_partial=True)
    except errors.CheckpointError:
        raise
    except (ValueError, tf.errors.OpError) as error:
        raise errors.CheckpointError(
            f"{prefix} does not match the model that the config describes: "
            f"{str(error).strip()[:500]}"
        ) from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelInputs:
    """The inputs of a model call.

    Attributes:
        args: Arguments, each a nested structure of arrays.
        names: Names of the arrays, in the order of `keras.tree.flatten(args)`.
        signature: Specs for the export; None if Keras knows them from the model.
    """

    args: Sequence[Any]
    names: Sequence[str]
    signature: Sequence[Any] | None = None

    def arrays(self) -> dict[str, Any]:
        """Return the arrays by name."""
        return dict(zip(self.names, keras.tree.flatten(list(self.args)), strict=True))


def random_inputs(model: keras.Model, seed: int = 0) -> ModelInputs:
    """Return random inputs; integers are 0 or 1, which are valid indices of any table.

    Raises:
        errors.ConfigValueError: The model does not define its inputs.
    """
    specs = _own_specs(model)
    if specs is None:
        raise errors.ConfigValueError(
            f"The inputs of {type(model).__name__} are unknown, because it is not a functional "
            "model. Use real inputs from the task's data."
        )
    generator = np.random.default_rng(seed)
    args = keras.tree.map_structure(lambda spec: _draw(spec, generator), specs)
    return ModelInputs(args=args, names=_names(specs))


def real_inputs(ctx: ExperimentContext) -> ModelInputs:
    """Return the inputs with which the task calls the model on its first evaluation examples.

    Raises:
        errors.DataError: There is no data.
        errors.ConfigValueError: The task does not call the model, or not with plain tensors.
    """
    model = ctx.require("model")
    dataset = evaluation_data(ctx)
    batch = next(iter(dataset), None)
    if batch is None:
        raise errors.DataError(
            "The validation data are empty; expected at least one batch as an example. Check the "
            "data config of the task."
        )
    args = _args_of_call(ctx, batch)
    arrays = [np.asarray(each) for each in keras.tree.flatten(args)]
    own_specs = _own_specs(model)
    if own_specs is not None:
        return ModelInputs(args=_few(args, arrays, own_specs), names=_names(own_specs))
    traced: list[Any] = []

    def step(inputs: nests.Nest) -> None:
        traced.extend(_args_of_call(ctx, inputs))

    tf.function(step).get_concrete_function(dataset.element_spec)
    specs = keras.tree.pack_sequence_as(
        traced,
        [
            tf.TensorSpec([None, *leaf.shape[1:]], _portable(leaf.dtype), name)
            for leaf, name in zip(keras.tree.flatten(traced), _names(traced), strict=True)
        ],
    )
    return ModelInputs(args=_few(args, arrays, specs), names=_names(specs), signature=specs)


def _args_of_call(ctx: ExperimentContext, batch: nests.Nest) -> list[Any]:
    """Return the tensors that the task passes to the model for a batch."""
    model = ctx.require("model")
    with _watching(model) as calls:
        ctx.require("task").validation_step(batch, model, [])
    if not calls:
        raise errors.ConfigValueError(
            f"The validation step of {type(ctx.task).__name__} does not call its model, so the "
            "inputs of the model are unknown. Call `model` in `validation_step`."
        )
    args = in_own_structure(model, calls[0])
    for leaf in keras.tree.flatten(args):
        if not tf.is_tensor(leaf) or isinstance(leaf, tf.RaggedTensor | tf.SparseTensor):
            raise errors.ConfigValueError(
                f"The task calls its model with a {type(leaf).__name__}; expected dense tensors."
            )
    return args


def in_own_structure(model: keras.Model, args: Sequence[Any]) -> list[Any]:
    """Return the arguments of a call with a dictionary brought into the structure of the inputs.

    As in Keras, a functional model whose inputs are no dictionary takes from the dictionary the
    features with the names of its inputs.

    Args:
        model: The model.
        args: The arguments of a call.
    """
    own = _own_inputs(model)
    if own is None or isinstance(own, Mapping) or not isinstance(args[0], Mapping):
        return list(args)
    return [keras.tree.map_structure(lambda x: args[0][x.name], own), *args[1:]]


@contextlib.contextmanager
def _watching(model: keras.Model) -> Iterator[list[list[Any]]]:
    """Record the arguments of each call of the model within the context."""
    call, calls = model.call, []
    signature = inspect.signature(call)

    def noting_call(*args: Any, **kwargs: Any) -> Any:
        calls.append(keras_variables.tensors_of_call(signature, args, kwargs))
        return call(*args, **kwargs)

    with keras_variables.replacing_call(model, noting_call):
        yield calls


def _own_inputs(model: keras.Model) -> Any:
    """Return the inputs of a functional or sequential model; None for any other model."""
    inputs = getattr(model, "inputs", None)
    if not inputs:
        return None
    return inputs[0] if isinstance(model, keras.Sequential) else model.input


def _own_specs(model: keras.Model) -> list[Any] | None:
    """Return the input specs of a functional or sequential model; None for any other model."""
    own = _own_inputs(model)
    if own is None:
        return None
    return keras.tree.map_structure(
        lambda x: tf.TensorSpec([None, *x.shape[1:]], x.dtype, x.name), [own]
    )


def _names(specs: Any) -> list[str]:
    """Return a name for each leaf of the specs: its own name, or a name built from its position."""
    names = []
    for path, leaf in keras.tree.flatten_with_path(specs):
        own = leaf.name if isinstance(leaf, tf.TensorSpec) else None
        place = "_".join(map(str, path[1:])) or "inputs"
        names.append(own or (place if len(specs) == 1 else f"{place}_{path[0]}"))
    return names


def _few(args: Any, arrays: Sequence[Any], specs: Any) -> Any:
    """Return the arguments for the first examples of a batch, with the dtypes of the specs.

    All rows are kept if an array is a scalar or if the arrays differ in their first dimension.
    """
    sizes = {array.shape[0] if array.ndim else None for array in arrays}
    rows = slice(_MAX_EXAMPLES if len(sizes) == 1 and None not in sizes else None)
    leaves = [
        array[rows].astype(spec.dtype.as_numpy_dtype) if array.ndim else array
        for array, spec in zip(arrays, keras.tree.flatten(specs), strict=True)
    ]
    return keras.tree.pack_sequence_as(args, leaves)


def _draw(spec: tf.TensorSpec, generator: np.random.Generator) -> Any:
    shape = [_OPEN_SIZE if size is None else size for size in spec.shape]
    if spec.dtype == tf.string:
        return np.full(shape, b"")
    if spec.dtype.is_floating:
        return generator.standard_normal(shape).astype(spec.dtype.as_numpy_dtype)
    return generator.integers(0, 2, shape).astype(spec.dtype.as_numpy_dtype)


def _portable(dtype: tf.DType) -> tf.DType:
    """Return float32 for half-precision dtypes, and other dtypes unchanged.

    The model itself converts its inputs to half precision.
    """
    return tf.float32 if dtype in (tf.float16, tf.bfloat16) else dtype
