"""The single-path one-shot trainer, which trains all paths evenly and ranks architectures later."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from official_lite.common import errors, nests
from official_lite.core import predictor
from official_lite.data import position
from official_lite.modeling.optimization import ema_optimizer
from official_lite.nas import choices, one_shot_trainer, resolution
from official_lite.orbit.hooks import batch_norm_statistics

__all__ = ["Ranked", "SposTrainer"]

# The fraction of a generation that becomes parents, and the probability that a child's option for a
# label is drawn at random.
_PARENTS = 0.25
_MUTATION = 0.1

Ranked = tuple[float, dict[str, Any]]
"""The rating of an architecture (larger is better, -inf if it is unknown) and the architecture."""


class SposTrainer(one_shot_trainer.OneShotTrainer):
    """A trainer that trains a random path in each step, drawn evenly or by the choices' priors.

    `rank` rates architectures with the shared weights, on batches of the architecture data.
    `export` returns the best one. Until `rank` has chosen a path, evaluations use a random path and
    predictions use the path of the last evaluation, or else the first option of each label.
    """

    has_arch_step = False
    draws_paths = True
    exports_at_checkpoints = False
    _ranking: tuple[int, list[Ranked]] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._reward = self.build_reward()

    def make_resolver(self, choice: choices.Choice) -> Any:
        return _EvenPath(choice)

    def export(self) -> dict[str, Any]:
        """Return the best architecture of `rank`.

        Raises:
            errors.DivergedError: If no architecture has a finite rating.
        """
        rating, arch = self.rank()[0]
        if not math.isfinite(rating):
            raise errors.DivergedError(
                f"None of the {len(self.rank())} rated architectures has a finite rating, so there "
                "is no best architecture. Check the metric of `one_shot.reward`, or lower the "
                "learning rate."
            )
        return arch

    def picks(self) -> dict[str, int]:
        """Return the index of the option that is computed outside of a step, by label."""
        return {label: resolver.export() for label, resolver in self.resolvers.items()}

    def probs(self) -> dict[str, list[float]]:
        """Return an empty dict, because this trainer learns no probabilities."""
        return {}

    def eval_begin(self) -> None:
        if self.resolved and self._ranking is None:
            step = int(self.global_step.numpy())
            generator = np.random.default_rng([self.config.runtime.seed, step])
            self._take({label: int(generator.integers(len(o))) for label, o in self.space.items()})
            self._warn_of_other_path("evaluates")
        super().eval_begin()

    def predict(self, first_batch: int = 0) -> Generator[predictor.Prediction, None, None]:
        """Yield the predictions of the path that is computed outside of a step; see `Trainer`."""
        if self.resolved and self._ranking is None:
            self._warn_of_other_path("predicts with")
        return super().predict(first_batch)

    def rank(self) -> list[Ranked]:
        """Rank architectures by their rating with the shared weights.

        If the optimizer keeps averages of the weights, the averages are used, as in evaluations.
        A small space is ranked exhaustively; a large one is explored by evolution. Until training
        continues, evaluations and `picks` use the best architecture.

        Returns:
            The rated architectures, best first. A rating that is not finite becomes -inf, the
            worst one.
        """
        step = int(self.global_step.numpy())
        ranking = self._ranking
        if ranking is None or ranking[0] != step:
            # Rate the weights that evaluations and exports use.
            with ema_optimizer.averaged_weights(self.optimizer):
                rated = self._rate_all()
            ranked = sorted(rated.values(), key=lambda entry: -entry[0])
            best = next(key for key, entry in rated.items() if entry is ranked[0])
            self._take(dict(zip(self.space, best, strict=True)))
            self.__dict__["_ranking"] = ranking = step, ranked
        return ranking[1]

    def train_loop_begin(self) -> None:
        self.__dict__["_ranking"] = None
        super().train_loop_begin()

    def _warn_of_other_path(self, does: str) -> None:
        # Architectures are ranked after the last checkpoint, so no checkpoint contains the best
        # path. Evaluations during training do not evaluate that path either and need no warning.
        if True not in self._task_metrics:
            logging.warning(
                "This run %s the path %s of the shared weights, which is not the architecture in "
                "`arch.json`. To use that architecture, train a run whose `task.arch` is the "
                "directory of the search.",
                does,
                self.describe(self.picks()),
            )

    def _rate_all(self) -> dict[tuple[int, ...], Ranked]:
        config = self.one_shot.spos
        rated: dict[tuple[int, ...], Ranked] = {}
        by_name: dict[str, Ranked] = {}
        sizes = [len(options) for options in self.space.values()]
        with self.strategy.scope(), position.begin_at(0, self.config.runtime.seed):
            dataset = self.distribute_dataset(
                one_shot_trainer.build_streams(
                    self.task.build_inputs,
                    names=(one_shot_trainer.VAL,),
                    arch_data=self.one_shot.arch_data,
                ),
                self.config.task.train_data,
            )
        batches = list(itertools.islice(iter(dataset), config.rank_batches))
        statistics = batch_norm_statistics.BatchNormStatistics(self)

        def rate(path: tuple[int, ...]) -> float:
            if path not in rated:
                picks = dict(zip(self.space, path, strict=True))
                arch = self.describe(picks)
                # Paths that differ only in inactive choices are the same architecture.
                name = repr(sorted(arch.items()))
                if name not in by_name:
                    by_name[name] = self._rate(picks, batches, statistics), arch
                rated[path] = by_name[name]
            return rated[path][0]

        if math.prod(sizes) <= config.max_exhaustive:
            for path in itertools.product(*map(range, sizes)):
                rate(path)
        else:
            self._evolve(rate, sizes)
        return rated

    def _evolve(self, rate: Callable[[tuple[int, ...]], float], sizes: list[int]) -> None:
        config = self.one_shot.spos
        generator = np.random.default_rng(self.config.runtime.seed)
        population = [_random_path(generator, sizes) for _ in range(config.population)]
        for _ in range(config.generations):
            parents = sorted(population, key=rate, reverse=True)
            parents = parents[: max(2, int(_PARENTS * len(parents)))]
            children = itertools.islice(
                _children(generator, parents, sizes), config.population - len(parents)
            )
            population = [*parents, *children]
        for path in population:
            rate(path)

    def _rate(
        self,
        picks: Mapping[str, int],
        batches: list[Any],
        statistics: batch_norm_statistics.BatchNormStatistics,
    ) -> float:
        self._take(picks)
        num_batches = self.one_shot.spos.calibration_batches
        cost = self.arch_cost.of(picks)
        if statistics.is_empty or not num_batches:
            return self._rate_batches(batches) - cost
        variables = [
            v
            for layer in self.model._flatten_layers()
            if hasattr(layer, "moving_mean")
            for v in (layer.moving_mean, layer.moving_variance)
        ]
        with batch_norm_statistics.unchanged(variables):
            statistics.update(num_batches, ends_on_signal=False)
            return self._rate_batches(batches) - cost

    def _rate_batches(self, batches: list[Any]) -> float:
        rating = float(np.mean([float(self._rate_batch(batch)) for batch in batches]))
        # Make a rating that is not finite the worst one. NaN would be neither better nor worse than
        # any other rating.
        return rating if math.isfinite(rating) else -math.inf

    @functools.cached_property
    def _rate_batch(self) -> Callable[[nests.Nest], tf.Tensor]:
        @tf.function
        def rate_batch(batch: nests.Nest) -> tf.Tensor:
            rewarded = self.strategy.run(self._reward.of_batch, args=(batch,))
            # Return the reward of one replica, because all replicas compute the same reward.
            return self.strategy.experimental_local_results(rewarded)[0]

        return rate_batch

    def _take(self, picks: Mapping[str, int]) -> None:
        for label, resolver in self.resolvers.items():
            resolver.index.assign(picks[label])


class _EvenPath(resolution.PathResolver):
    """A path resolver without trainable variables that derives its logits from the prior."""

    def __init__(self, choice: choices.Choice) -> None:
        resolution.require_sum(choice)
        self._logits = [math.log(p) for p in choice.prior or [1.0] * len(choice.options)]
        self.index = tf.Variable(
            0,
            dtype=tf.int32,
            trainable=False,
            name=resolution.variable_name("path", choice),
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )

    @property
    def variables(self) -> list[Any]:
        return []

    def logits(self) -> tf.Tensor:
        return tf.constant(self._logits, tf.float32)

    def preferred(self) -> tf.Tensor:
        return self.index.read_value()

    def export(self) -> int:
        return int(self.index.numpy())


def _random_path(generator: np.random.Generator, sizes: list[int]) -> tuple[int, ...]:
    return tuple(int(generator.integers(size)) for size in sizes)


def _children(
    generator: np.random.Generator, parents: list[tuple[int, ...]], sizes: list[int]
) -> Iterator[tuple[int, ...]]:
    """Yield an endless sequence of child architectures.

    For each label, a child has the option of one of two random parents, or a random option.
    """
    while True:
        first, second = (parents[int(i)] for i in generator.integers(len(parents), size=2))
        drawn = _random_path(generator, sizes)
        dice = generator.random((2, len(sizes)))
        yield tuple(
            new if mutates < _MUTATION else (one if side < 0.5 else other)
            for one, other, new, side, mutates in zip(
                first, second, drawn, dice[0], dice[1], strict=True
            )
        )
