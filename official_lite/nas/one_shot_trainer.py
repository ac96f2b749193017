"""The base class of trainers that search an architecture within a single training run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from official_lite import orbit
from official_lite.checkpoint import directories, keras2_converter, model_state
from official_lite.common import errors, keras_variables, nests, user_code
from official_lite.core import base_task, base_trainer, config_definitions, train_data
from official_lite.data import halves, length, position
from official_lite.execution.executors import Dataset
from official_lite.modeling import distributed_gradients, hyperparams, performance
from official_lite.modeling.optimization import ema_optimizer
from official_lite.nas import architecture, choices, configs, probes, resolution
from official_lite.nas.resolution import Draw
from official_lite.telemetry import text_file_writers

__all__ = [
    "ARCH",
    "ExportArch",
    "IdlePaths",
    "OneShotTrainer",
    "TRAIN",
    "VAL",
    "WEIGHTS",
    "build_streams",
]

TRAIN, VAL = "train", "val"
"""The names of the two streams of training data."""

ARCH, WEIGHTS = 1, 2
"""Salts of the random numbers for a step of the architecture and for a step of the weights."""

# A location in the model, as pairs of a label and the indices of some of its options. A step uses
# the location if, for every label, it uses one of these options.
_Place = tuple[tuple[str, frozenset[int]], ...]


class OneShotTrainer(base_trainer.Trainer):
    """A trainer that learns the weights of a model with choices and its architecture in each step.

    It works with any task whose model has choices. The task need not know about the search::

        train_step(iterator)                in the compiled loop
          arch_step({"train", "val"})       on every replica: a step of the architecture
          task.train_step(...)              on every replica: a step of the weights
        export() -> {label: choice}         the currently preferred options

    A subclass defines how a choice is computed (`make_resolver`), what is drawn in a step
    (`arch_draw`, `weight_draw`) and how the architecture learns (`arch_gradients`). If `task.arch`
    is set, there is nothing to search, and this class behaves like a plain `Trainer`.

    The search is configured by `config.trainer.one_shot`. If the trainer's config has no such
    field, the defaults of `configs.OneShotConfig` apply.

    The constructor takes the same arguments as `Trainer` and sets the resolvers of all choices.

    Attributes:
        resolved: The label and resolver of each choice, in the order of the model.
        space: The options of each label.
        arch_cost: The function that computes the cost of an architecture.

    Raises:
        errors.ConfigValueError: If the model has no choices although `task.arch` is empty, or if it
            has a choice that this trainer can't search.
    """

    one_shot: configs.OneShotConfig
    resolved: list[tuple[str, Any]]
    space: dict[str, list[Any]]

    # The `Choice` classes that this trainer can search.
    kinds: ClassVar[tuple[type[choices.Choice], ...]] = (
        choices.LayerChoice,
        choices.InputChoice,
        choices.Repeat,
    )
    divides_data = True
    # Whether a step also reads a batch for the architecture update.
    has_arch_step: ClassVar[bool] = True
    # Whether a weight update uses a single path through the model.
    draws_paths: ClassVar[bool] = False
    # Whether `export` is fast enough to run at every checkpoint.
    exports_at_checkpoints: ClassVar[bool] = True

    def __init__(
        self,
        config: base_trainer.ExperimentConfig,
        task: base_task.Task,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        # Bypass the tracking of `tf.Module`, which would wrap lists and dictionaries.
        own = self.__dict__
        own["one_shot"] = (
            hyperparams.get_by_path(config, "trainer.one_shot") or configs.OneShotConfig()
        )
        own["resolved"] = self.resolve(model)
        own["space"] = resolution.space_of(model)
        if not self.resolved:
            _require_arch(config, model)
        wrapped = distributed_gradients.wrapped_optimizers(optimizer)
        scales_loss = any(isinstance(o, keras.optimizers.LossScaleOptimizer) for o in wrapped)
        self.arch_optimizer = self._build_arch_optimizer(scales_loss)
        self._arch_loss = keras.metrics.Mean("arch_loss", dtype="float32")
        super().__init__(config, task, model, optimizer, *args, **kwargs)
        self._probe = probes.LossProbe(self.task, self.model, self.optimizer)
        self.arch_cost = probes.Penalty(self.model, self.one_shot.penalty)
        self._idle_paths = (
            IdlePaths(self.model, self.optimizer)
            if self.draws_paths and self.one_shot.idle_paths == "freeze"
            else None
        )

    def resolve(self, model: keras.Model) -> list[tuple[str, Any]]:
        """Set the resolver of each choice.

        The constructor calls this in the strategy's scope, before the model is built.

        Returns:
            The label and resolver of each choice, in the order of the model.
        """
        return resolution.resolve_choices(model, dict.fromkeys(self.kinds, self.make_resolver))

    def make_resolver(self, choice: choices.Choice) -> Any:
        """Return the resolver that computes the open choices of a label."""
        # This method is not abstract, because a trainer may override `resolve` instead.
        raise NotImplementedError(
            f"{type(self).__name__} must override `make_resolver` or `resolve`."
        )

    @property
    def resolvers(self) -> dict[str, Any]:
        """The resolver of each label."""
        return dict(self.resolved)

    @property
    def alphas(self) -> list[keras.Variable]:
        """The variables that describe the architecture, which are not weights of the model."""
        found = [v for _, r in self.resolved for v in getattr(r, "variables", ())]
        return list({id(v): v for v in found}.values())

    @property
    def train_metrics(self) -> list[keras.metrics.Metric]:
        """The metrics of a `Trainer`, plus the loss from which the architecture learns."""
        own = [self._arch_loss] if self.resolved and self.has_arch_step else []
        return [*super().train_metrics, *own]

    def fit(self, **kwargs: Any) -> None:
        """Search until `config.trainer.train_steps`, without the stages of a pipeline run.

        Args:
            **kwargs: Arguments of `orbit.Controller`, such as `hooks` and `model_dir`.
        """
        config = self.config.trainer
        kwargs = {
            "steps_per_loop": config.steps_per_loop,
            "global_step": self.global_step,
            **kwargs,
        }
        kwargs["hooks"] = [*self.build_hooks(), *kwargs.get("hooks", ())]
        with self.strategy.scope():
            controller = orbit.Controller(strategy=self.strategy, trainer=self, **kwargs)
            controller.train(steps=config.train_steps)

    def export(self) -> dict[str, Any]:
        """Return the preferred option of each active label. The result is never a sample.

        A label is inactive if all its choices are inside candidates that are not chosen.

        Raises:
            errors.DivergedError: If an architecture parameter is not finite, so that no option is
                preferred.
        """
        for alpha in self.alphas:
            if not np.isfinite(tf.convert_to_tensor(alpha)).all():
                raise errors.DivergedError(
                    f"The architecture parameter `{keras_variables.path_of(alpha)}` is not finite, "
                    "so no option is preferred. Lower `one_shot.arch_learning_rate`, or remove the "
                    "candidate whose output is not finite."
                )
        return self.describe(self.picks())

    def picks(self) -> dict[str, int]:
        """Return the index of the preferred option, by label."""
        return {label: int(resolver.export()) for label, resolver in self.resolvers.items()}

    def probs(self) -> dict[str, list[float]]:
        """Return the current probability of each option, by label."""
        return {
            label: [float(p) for p in tf.convert_to_tensor(resolver.probs()).numpy()]
            for label, resolver in self.resolvers.items()
            if hasattr(resolver, "probs")
        }

    def describe(self, picks: Mapping[str, int]) -> dict[str, Any]:
        """Return an architecture in the form of `arch.json`: option names of the active labels."""
        active = resolution.active_choices(self.model, picks)
        return {c.label: c.options[picks[c.label]] for c in active}

    def build_hooks(self) -> list[orbit.Hook]:
        """Return the hooks of a `Trainer`, plus the hook that writes `arch.json`."""
        own = [ExportArch(self.exports_at_checkpoints)] if self.resolved else []
        return [*super().build_hooks(), *own]

    def task_inputs(self, inputs: nests.Nest) -> nests.Nest:
        """Return the part of a training batch that trains the weights."""
        has_streams = self.resolved and self.has_arch_step
        return inputs[TRAIN] if has_streams else inputs

    @user_code.not_converted
    def train_step(self, iterator: Iterator[Any]) -> None:
        """Run a step of the architecture, followed by a step of the weights."""
        if not self.resolved:
            super().train_step(iterator)
            return
        inputs = user_code.converted(self.next_train_inputs)(iterator)
        if self.has_arch_step:
            self._if_due(lambda: self.run_step(self._arch_step, inputs))
        step = self.global_step.read_value()
        kept = self._idle_paths.keep() if self._idle_paths else []
        self.run_step(self._weight_step, self.task_inputs(inputs))
        if self._idle_paths and (draw := user_code.converted(self.weight_draw)(step)):
            self._idle_paths.put_back(kept, draw.paths)

    def is_arch_step_due(self, step: tf.Tensor) -> tf.Tensor | None:
        """Return whether the architecture learns at this step; None means always."""
        warmup = self.one_shot.warmup_steps
        return step >= warmup if warmup else None

    @property
    def arch_loss_scale(self) -> tf.Tensor | None:
        """The factor that keeps float16 gradients of `alphas` from becoming 0; None for others."""
        if getattr(self.arch_optimizer, "dynamic_scale", None) is None:
            return None
        return tf.convert_to_tensor(self.arch_optimizer.scale_loss(tf.constant(1.0)))

    def arch_draw(self, step: tf.Tensor) -> Draw | None:
        """Return the draw for a step of the architecture."""
        del step
        return None

    def weight_draw(self, step: tf.Tensor) -> Draw | None:
        """Return the draw for a step of the weights: a path, if the trainer draws paths."""
        return Draw(paths=self.sampled_paths(step, WEIGHTS)) if self.draws_paths else None

    @user_code.not_converted
    def arch_step(self, inputs: Mapping[str, Any]) -> None:
        """Run a step of the architecture on a replica: compute gradients, then update."""
        gradients = user_code.converted(self.arch_gradients)(inputs)
        share = 1.0 / self.strategy.num_replicas_in_sync
        decay = self.one_shot.arch_weight_decay
        scale = self.arch_loss_scale
        scale = 1.0 if scale is None else scale
        pairs = [
            (scale * (gradient + share * decay * alpha.value), alpha)
            for gradient, alpha in zip(gradients, self.alphas, strict=True)
        ]
        self.arch_optimizer.apply_gradients(pairs)

    def arch_gradients(self, inputs: Mapping[str, Any]) -> list[tf.Tensor]:
        """Return this replica's gradients of `alphas`, which are summed over the replicas."""
        # This method is not abstract, because trainers with `has_arch_step = False` do not need it.
        raise NotImplementedError(f"{type(self).__name__} must override `arch_gradients`.")

    def loss(
        self, inputs: nests.Nest, variables: Sequence[Any] = (), values: Sequence[tf.Tensor] = ()
    ) -> tf.Tensor:
        """Return this replica's share of the loss of a batch; see `probes.LossProbe`."""
        return self._probe(inputs, variables, values)

    def arch_loss(
        self, inputs: nests.Nest, variables: Sequence[Any] = (), values: Sequence[tf.Tensor] = ()
    ) -> tf.Tensor:
        """Return `loss` plus the cost of the architecture, and record the metric `arch_loss`.

        The metric does not include the cost.
        """
        replicas = self.strategy.num_replicas_in_sync
        loss = self.loss(inputs, variables, values)
        self._arch_loss.update_state(loss * replicas)
        cost = self.arch_cost({label: r.probs() for label, r in self.resolvers.items()})
        return loss + cost / replicas

    def build_reward(self) -> probes.Reward:
        """Build the reward of a batch: the metric `one_shot.reward`, or the negative loss."""
        config = self.one_shot
        return probes.Reward(
            self.task, self.model, metric=config.reward, direction=config.reward_direction
        )

    def noise(self, step: tf.Tensor, salt: int) -> dict[str, tf.Tensor]:
        """Return Gumbel noise for the logits of each label, the same on all replicas."""
        labels = list(self.space)
        noise = resolution.gumbel_noise(
            [len(self.space[label]) for label in labels],
            seed=self.config.runtime.seed,
            step=step,
            salt=salt,
        )
        return dict(zip(labels, noise, strict=True))

    def sampled_paths(self, step: tf.Tensor, salt: int) -> dict[str, tf.Tensor]:
        """Return the index of an option for each label, sampled by the logits of its resolver."""
        noise = self.noise(step, salt)
        logits = [self.resolvers[label].logits() for label in noise]
        return dict(zip(noise, resolution.sample(logits, list(noise.values())), strict=True))

    @user_code.not_converted
    def _arch_step(self, inputs: Mapping[str, Any]) -> None:
        self.begin_replica_step()
        draw = user_code.converted(self.arch_draw)(self.global_step.read_value())
        with resolution.active_draw(draw):
            user_code.converted(self.arch_step)(inputs)

    @user_code.not_converted
    def _weight_step(self, inputs: nests.Nest) -> None:
        draw = user_code.converted(self.weight_draw)(self.global_step.read_value())
        with resolution.active_draw(draw):
            self.replica_train_step(inputs)

    def _if_due(self, run: Callable[[], Any]) -> None:
        is_due = user_code.converted(self.is_arch_step_due)(self.global_step.read_value())
        if is_due is None:
            run()
            return

        def run_it() -> tf.Tensor:
            run()
            return tf.constant(True)

        if tf.executing_eagerly():
            if bool(is_due):
                run()
            return
        tf.cond(is_due, run_it, lambda: tf.constant(False))

    def _init_training(self, dataset: Dataset | None) -> None:
        if self.resolved:
            build_inputs = build_streams(
                self.task.build_inputs,
                names=(TRAIN, VAL) if self.has_arch_step else (TRAIN,),
                arch_data=self.one_shot.arch_data,
            )
            self._train_data = train_data.TrainData(
                self.config, build_inputs, self.distribute_dataset
            )
        super()._init_training(dataset)

    def _replica_spec(self, training: bool) -> nests.Nest:
        spec = super()._replica_spec(training)
        return self.task_inputs(spec) if training else spec

    @property
    def _divided_cls(self) -> type[base_trainer.Trainer]:
        # If there is no search, this class trains in the same way as `Trainer`.
        return super()._divided_cls if self.resolved else OneShotTrainer

    def _build_arch_optimizer(self, scales_loss: bool) -> keras.optimizers.Optimizer:
        config = self.one_shot
        optimizer = keras.optimizers.Adam(
            config.arch_learning_rate,
            beta_1=config.arch_beta_1,
            beta_2=config.arch_beta_2,
            name="arch_adam",
        )
        if scales_loss and self.alphas:
            # Use a separate loss scale, which decreases if the gradients of the architecture
            # overflow.
            optimizer = performance.LossScaleOptimizer(optimizer, name="arch_loss_scale")
        distributed_gradients.make_distributed(optimizer)
        optimizer.build(self.alphas)
        return optimizer

    def _checkpoint_items(self) -> dict[str, Any]:
        items = super()._checkpoint_items()
        if not self.resolved:
            return items
        items["arch_optimizer"] = self.arch_optimizer
        if self.alphas:
            # Also save the options, because the values of `alphas` are matched to the options by
            # position.
            options = [f"{label}: {name}" for label, names in self.space.items() for name in names]
            items["alphas"] = self.alphas
            items["alpha_options"] = model_state.HiddenNames(options, options)
        return items


def _require_arch(config: base_trainer.ExperimentConfig, model: keras.Model) -> None:
    if not hyperparams.get_by_path(config, "task.arch"):
        raise errors.ConfigValueError(
            f"The model {model.name!r} has no choices, so there is nothing to "
            "search. Add choices such as `nas.LayerChoice` (in the constructor of a subclass), or "
            "use a trainer that does not search."
        )
    logging.info(
        "`task.arch` is set, so the model is trained with this architecture, without a search."
    )


class ExportArch(orbit.Hook):
    """A hook that writes `arch.json` at every checkpoint and at the end of a search.

    At the same times and after every evaluation it also appends the probability of each option to
    `arch_history.jsonl`. The trainers of `nas` add this hook themselves.

    Args:
        at_checkpoints: Whether to write at checkpoints, too. Set it to False for trainers whose
            `export` is slow.
    """

    name = "export_arch"

    def __init__(self, at_checkpoints: bool = True) -> None:
        self._at_checkpoints = at_checkpoints
        self._metric: dict[str, float] = {}
        self._noted_step = -1

    def after_eval(self, logs: Mapping[str, Any]) -> None:
        self._metric = {
            name: float(value)
            for name, value in logs.items()
            if not hasattr(value, "__len__") and getattr(value, "shape", ()) == ()
        }
        self._note_probs()

    def on_checkpoint(self, path: str) -> None:
        if self._at_checkpoints:
            self._write()

    def after_train(self, success: bool) -> None:
        # After a signal, time may be too short for a slow export. A resumed search exports later.
        if success and (self._at_checkpoints or not self.controller.is_interrupted):
            self._write()

    def before_train(self) -> None:
        # Remove the lines of an earlier start for steps that are trained again.
        self._rewind()

    def after_restore(self) -> None:
        # Steps after the checkpoint are discarded. If the same step is recorded again, its
        # probabilities may differ.
        self._noted_step = -1
        self._rewind()

    def state_dict(self) -> dict[str, Any]:
        return {"metric": self._metric}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._metric = dict(state["metric"])

    def _write(self) -> None:
        trainer: Any = self.trainer
        # Export on all workers, because the export may require all of them.
        arch = trainer.export()
        directory = self._directory()
        if directory is None:
            return
        self._note_probs()
        architecture.write_arch(
            directory,
            arch,
            space=trainer.space,
            probs=trainer.probs(),
            metric=self._metric,
            step=int(trainer.global_step.numpy()),
        )
        logging.info("The architecture at step %d: %s", trainer.global_step.numpy(), arch)

    def _rewind(self) -> None:
        """Remove the lines after the current step."""
        if path := self._history_path():
            text_file_writers.JsonLinesWriter(path).rewind(self.controller.step)

    def _note_probs(self) -> None:
        trainer: Any = self.trainer
        path, step = self._history_path(), int(trainer.global_step.numpy())
        if path is None or step == self._noted_step or not (probs := trainer.probs()):
            return
        self._noted_step = step
        history = text_file_writers.LineFile(path)
        history.append(architecture.to_history_line(step, probs))
        history.close()

    def _history_path(self) -> str | None:
        """Return the file to which this process writes probabilities; None if it writes none."""
        directory = self._directory()
        return None if directory is None else os.path.join(directory, architecture.HISTORY_FILE)

    def _directory(self) -> str | None:
        """Return the directory to which this process writes; None if it does not write."""
        trainer: Any = self.trainer
        is_chief = directories.is_chief(trainer.strategy)
        return self.controller.model_dir if is_chief else None


class IdlePaths:
    """The weights inside candidates, together with their optimizer slots and moving averages.

    Weights that are also used outside of all choices are excluded. This includes the weights of a
    layer that is both a candidate and an attribute of a model or layer.

    Call both methods in the cross-replica context.

    Args:
        model: A built model with choices.
        optimizer: A built Keras optimizer.
    """

    def __init__(self, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
        places = _places_of_weights(model)
        # Group variables by their locations, so that `put_back` determines only once per group
        # whether a step has used its variables.
        self._variables: dict[tuple[_Place, ...], list[Any]] = {}
        outside: list[str] = []
        for weight in model.trainable_variables:
            found = tuple(places.get(id(weight), ()))
            if found and all(found):
                own = [weight, *_slots_of(weight, optimizer)]
                self._variables.setdefault(found, []).extend(own)
            elif any(found):
                outside.append(keras_variables.path_of(weight))
        if outside:
            logging.warning(
                "`idle_paths: freeze` has no effect on %s, because their layers are used both as "
                "candidates and elsewhere in the model. If a layer is used only as a candidate, "
                "pass a function that creates it instead of the layer.",
                ", ".join(f"`{path}`" for path in outside),
            )

    def keep(self) -> list[list[tf.Tensor]]:
        """Return copies of the current values, for `put_back`."""
        return [
            [tf.identity(keras_variables.raw(variable)) for variable in variables]
            for variables in self._variables.values()
        ]

    def put_back(self, kept: Sequence[Sequence[tf.Tensor]], paths: Mapping[str, tf.Tensor]) -> None:
        """Restore the values of the variables that a step with these paths did not use."""
        for (places, variables), values in zip(self._variables.items(), kept, strict=True):
            is_used = tf.reduce_any([_is_used(place, paths) for place in places])
            for variable, value in zip(map(keras_variables.raw, variables), values, strict=True):
                variable.assign(tf.where(is_used, tf.convert_to_tensor(variable), value))


def _is_used(place: _Place, paths: Mapping[str, tf.Tensor]) -> tf.Tensor:
    return tf.reduce_all(
        [tf.reduce_any(tf.equal(paths[label], sorted(indices))) for label, indices in place]
    )


def _places_of_weights(model: keras.Model) -> dict[int, list[_Place]]:
    """Return the locations where each weight is used, by the weight's id.

    A layer has several locations if choices share it. The location outside of all choices is an
    empty tuple.
    """
    found: dict[int, list[_Place]] = {}
    seen: set[tuple[int, _Place]] = set()

    def visit(layer: keras.layers.Layer, place: _Place) -> None:
        if (id(layer), place) in seen:
            return
        seen.add((id(layer), place))
        if not isinstance(layer, choices.Choice):
            for weight in layer._trainable_variables:
                found.setdefault(id(weight), []).append(place)
            for inner in layer._layers:
                visit(inner, place)
            return
        users: dict[int, tuple[keras.layers.Layer, set[int]]] = {}
        for index in range(len(layer.options)):
            for inner in layer.layers_of(index):
                users.setdefault(id(inner), (inner, set()))[1].add(index)
        for inner, indices in users.values():
            visit(inner, (*place, (layer.label, frozenset(indices))))

    visit(model, ())
    return found


def _slots_of(weight: keras.Variable, optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """Return the optimizer variables that belong to a weight, such as momentum and average."""
    averages = ema_optimizer.weights_and_averages(optimizer)
    slots = [average for one, average in averages if one is weight]
    for one in distributed_gradients.wrapped_optimizers(optimizer):
        weights = list(getattr(one, "_trainable_variables", ()))
        index = next((i for i, w in enumerate(weights) if w is weight), None)
        if index is None:
            continue
        # `_variables` lists all variables of the optimizer, in the order of their creation.
        lists = [v for name, v in vars(one).items() if isinstance(v, list) and name != "_variables"]
        found = [values[index] for values in lists if len(values) == len(weights)]
        found += [v for (i, _), v in keras2_converter.own_slots(one).items() if i == index]
        slots += [v for v in found if keras_variables.is_variable(v) and v is not weight]
    return list({id(keras_variables.raw(slot)): slot for slot in slots}.values())


def build_streams(
    build_inputs: Callable[..., tf.data.Dataset],
    *,
    names: Sequence[str] = (TRAIN, VAL),
    arch_data: config_definitions.DataConfig | None = None,
) -> Callable[..., tf.data.Dataset]:
    """Return a function like a task's `build_inputs` that builds a dataset of both streams.

    One stream trains the weights, the other the architecture: each element is `{"train": batch,
    "val": batch}`. Each stream repeats independently, so the shorter one does not end the epoch of
    the other. A resumed run continues both streams where it was interrupted.

    Args:
        build_inputs: The method of the task.
        names: The streams to build. With a single name, the dataset yields the batches of that
            stream directly.
        arch_data: The data config of the `val` stream. Without it, the training data are split as
            if each worker were two workers: the first reads one half, the second the other half.
            The halves of arrays, files and a `source` are the same in every epoch; a pipeline of
            the task's own divides its data by its rules for several workers. Data that are not
            sharded among workers (`sharding: false`) are not split here either.
    """
    build_inputs = length.repeat(build_inputs)

    def build(
        params: config_definitions.DataConfig,
        input_context: tf.distribute.InputContext | None = None,
    ) -> tf.data.Dataset:
        begin = position.current()
        parts, are_kept = {}, []
        for name in names:
            part, context = _part(name, params, arch_data, input_context)
            if begin is None:
                parts[name] = build_inputs(part, context)
                continue
            with position.begin_at(begin.batch, begin.seed) as own:
                parts[name] = build_inputs(part, context)
            are_kept.append(own.is_kept)
        if begin is not None and all(are_kept):
            position.take()
        return tf.data.Dataset.zip(parts) if len(names) > 1 else parts[names[0]]

    return build


def _part(
    name: str,
    params: config_definitions.DataConfig,
    arch_data: config_definitions.DataConfig | None,
    input_context: tf.distribute.InputContext | None,
) -> tuple[Any, tf.distribute.InputContext | None]:
    """Return the data config and the input context of one of the two streams."""
    if arch_data is not None:
        return (params if name == TRAIN else arch_data), input_context
    context = halves.HalfContext(input_context or tf.distribute.InputContext(), int(name == VAL))
    # The context has twice as many replicas, so this keeps the batch size per replica.
    return params.replace(global_batch_size=2 * params.global_batch_size), context
