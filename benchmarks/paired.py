"""Paired timing of several variants in turn, so that other load affects all of them equally."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence


def time_in_turn(
    variants: Mapping[str, Callable[[], None]], rounds: int, warmup: int = 2
) -> dict[str, list[float]]:
    """Return the seconds of each call of each variant; calls of one round are adjacent in time.

    Every second round runs in reverse order, because the first variant may find cold caches or a
    hot core.

    Args:
        variants: The functions to call, by name.
        rounds: The number of counted calls of each variant.
        warmup: The number of calls of each variant before these.
    """
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for index in range(warmup + rounds):
        for name, run in list(variants.items())[:: -1 if index % 2 else 1]:
            start = time.perf_counter()
            run()
            if index >= warmup:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(seconds: Mapping[str, Sequence[float]], name: str, baseline: str) -> float:
    """Return the median, over the rounds, of the time of `name` divided by that of `baseline`."""
    pairs = zip(seconds[name], seconds[baseline], strict=True)
    return statistics.median(one / other for one, other in pairs)
