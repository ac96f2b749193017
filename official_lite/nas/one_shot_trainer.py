"""The base class of trainers that search an architecture within a single training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from official_lite import orbit
from official_lite.common import errors, keras_variables, types, user_code
from official_lite.core import base_task, base_trainer, train_data
from official_lite.execution.executors import Dataset
from official_lite.modeling import distributed_gradients, hyperparams
from official_lite.nas import (
    choices,
    configs,
    draws,
    export_arch,
    idle_paths,
    input_choice,
    loss_probe,
    penalty,
    resolution,
    train_val_streams,
)

__all__ = ["OneShotTrainer"]


class OneShotTrainer(base_trainer.Trainer):
    """A trainer that learns the weights of a model with choices and its architecture in each step.

    It works with any task whose model has choices. The task does not need to know of the search::

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

    Raises:
        errors.ConfigValueError: If the model has no choices although `task.arch` is empty, or if it
            has a choice that this trainer can't search.
    """

    one_shot: configs.OneShotConfig
    resolved: list[tuple[str, Any]]
    space: dict[str, list[Any]]
    _idle_paths: idle_paths.IdlePaths | None

    # The classes of choices that this trainer can search.
    kinds: ClassVar[tuple[type[choices.Choice], ...]] = (
        choices.LayerChoice,
        input_choice.InputChoice,
        choices.Repeat,
    )
    divides_data = True
    # Whether a step reads a batch for the architecture.
    has_arch_step: ClassVar[bool] = True
    # Whether a step of the weights uses a single path through the model.
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
        self.arch_optimizer = self._build_arch_optimizer()
        self._arch_loss = keras.metrics.Mean("arch_loss", dtype="float32")
        super().__init__(config, task, model, optimizer, *args, **kwargs)
        own["_probe"] = loss_probe.LossProbe(self.task, self.model, self.optimizer)
        own["_penalty"] = penalty.Penalty(self.model, self.one_shot.penalty)
        own["_idle_paths"] = (
            idle_paths.IdlePaths(self.model, self.optimizer)
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
        # Not abstract: a trainer may override `resolve` instead.
        raise NotImplementedError(f"{type(self).__name__} has no `make_resolver`.")

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
        own = [export_arch.ExportArch(self.exports_at_checkpoints)] if self.resolved else []
        return [*super().build_hooks(), *own]

    @user_code.not_converted
    def train_step(self, iterator: Iterator[Any]) -> None:
        """Run a step of the architecture, followed by a step of the weights."""
        inputs = user_code.converted(self.next_train_inputs)(iterator)
        if not self.resolved:
            self.run_step(self.replica_train_step, inputs)
            return
        if self.has_arch_step:
            self._if_due(lambda: self.run_step(self._arch_step, inputs))
            inputs = inputs[train_val_streams.TRAIN]
        step = self.global_step.read_value()
        kept = self._idle_paths.keep() if self._idle_paths else []
        self.run_step(self._weight_step, inputs)
        if self._idle_paths and (draw := user_code.converted(self.weight_draw)(step)):
            self._idle_paths.put_back(kept, draw.paths)

    def is_arch_step_due(self, step: tf.Tensor) -> tf.Tensor | None:
        """Return whether the architecture learns at this step; None means always."""
        warmup = self.one_shot.warmup_steps
        return step >= warmup if warmup else None

    def arch_draw(self, step: tf.Tensor) -> draws.Draw | None:
        """Return the draw for a step of the architecture."""
        del step
        return None

    def weight_draw(self, step: tf.Tensor) -> draws.Draw | None:
        """Return the draw for a step of the weights."""
        del step
        return None

    @user_code.not_converted
    def arch_step(self, inputs: Mapping[str, Any]) -> None:
        """Run a step of the architecture on a replica: compute gradients, then update."""
        gradients = user_code.converted(self.arch_gradients)(inputs)
        share = 1.0 / self.strategy.num_replicas_in_sync
        decay = self.one_shot.arch_weight_decay
        pairs = [
            (gradient + share * decay * alpha.value, alpha)
            for gradient, alpha in zip(gradients, self.alphas, strict=True)
        ]
        self.arch_optimizer.apply_gradients(pairs)

    def arch_gradients(self, inputs: Mapping[str, Any]) -> list[tf.Tensor]:
        """Return this replica's gradients of `alphas`, which are summed over the replicas."""
        # Not abstract: a trainer with `has_arch_step = False` does not need this method.
        raise NotImplementedError(f"{type(self).__name__} has no `arch_gradients`.")

    def loss(
        self, inputs: types.Nest, variables: Sequence[Any] = (), values: Sequence[tf.Tensor] = ()
    ) -> tf.Tensor:
        """Return this replica's share of the loss of a batch; see `loss_probe.LossProbe`."""
        probe: loss_probe.LossProbe = self.__dict__["_probe"]
        return probe(inputs, variables, values)

    def arch_loss(
        self, inputs: types.Nest, variables: Sequence[Any] = (), values: Sequence[tf.Tensor] = ()
    ) -> tf.Tensor:
        """Return `loss` plus the cost of the architecture, and record the metric `arch_loss`.

        The metric does not include the cost.
        """
        replicas = self.strategy.num_replicas_in_sync
        loss = self.loss(inputs, variables, values)
        self._arch_loss.update_state(loss * replicas)
        cost = self.arch_cost({label: r.probs() for label, r in self.resolvers.items()})
        return loss + cost / replicas

    @property
    def arch_cost(self) -> penalty.Penalty:
        """The function that computes the cost of an architecture."""
        own: penalty.Penalty = self.__dict__["_penalty"]
        return own

    def noise(self, step: tf.Tensor, salt: int) -> dict[str, tf.Tensor]:
        """Return Gumbel noise for the logits of each label, the same on all replicas."""
        labels = list(self.space)
        noise = draws.gumbel_noise(
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
        return dict(zip(noise, draws.sample(logits, list(noise.values())), strict=True))

    @user_code.not_converted
    def _arch_step(self, inputs: Mapping[str, Any]) -> None:
        self.begin_replica_step()
        draw = user_code.converted(self.arch_draw)(self.global_step.read_value())
        with draws.active(draw):
            user_code.converted(self.arch_step)(inputs)

    @user_code.not_converted
    def _weight_step(self, inputs: types.Nest) -> None:
        draw = user_code.converted(self.weight_draw)(self.global_step.read_value())
        with draws.active(draw):
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
            build_inputs = train_val_streams.build_streams(
                self.task.build_inputs,
                names=(train_val_streams.TRAIN, train_val_streams.VAL)
                if self.has_arch_step
                else (train_val_streams.TRAIN,),
                arch_data=self.one_shot.arch_data,
            )
            self._train_data = train_data.TrainData(
                self.config, build_inputs, self.distribute_dataset
            )
        super()._init_training(dataset)

    def _build_model(self, train: bool) -> None:
        with draws.active(self._draw_to_build()):
            super()._build_model(train)

    def _replica_spec(self, training: bool) -> types.Nest:
        spec = super()._replica_spec(training)
        has_streams = training and self.resolved and self.has_arch_step
        return spec[train_val_streams.TRAIN] if has_streams else spec

    def _draw_to_build(self) -> draws.Draw | None:
        return None

    def _build_arch_optimizer(self) -> keras.optimizers.Optimizer:
        config = self.one_shot
        optimizer = distributed_gradients.make_distributed(
            keras.optimizers.Adam(
                config.arch_learning_rate,
                beta_1=config.arch_beta_1,
                beta_2=config.arch_beta_2,
                name="arch_adam",
            )
        )
        optimizer.build(self.alphas)
        return optimizer

    def _checkpoint_items(self) -> dict[str, Any]:
        items = super()._checkpoint_items()
        if not self.resolved:
            return items
        alphas = {"alphas": self.alphas} if self.alphas else {}
        return {**items, **alphas, "arch_optimizer": self.arch_optimizer}


def _require_arch(config: base_trainer.ExperimentConfig, model: keras.Model) -> None:
    if not hyperparams.get_by_path(config, "task.arch"):
        raise errors.ConfigValueError(
            f"The model {getattr(model, 'name', model)!r} has no choices, so there is nothing to "
            "search. Add choices such as `nas.LayerChoice` (in the constructor of a subclass), or "
            "use a trainer that does not search."
        )
    logging.info(
        "`task.arch` is set, so the model is trained with this architecture, without a search."
    )
