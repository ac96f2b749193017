"""Times several ways of doing the same in turn, so that a machine's moods fall on all of them."""

import statistics
import time
from collections.abc import Callable, Mapping


def time_in_turn(
    variants: Mapping[str, Callable[[], None]], rounds: int, warmup: int = 2
) -> dict[str, list[float]]:
    """Seconds of each call of each variant; round i of one was run right beside round i of another.

    Every second round goes backwards, as whoever comes first may find caches cold or a core hot.

    Args:
        variants: What to call, by name.
        rounds: Counted calls of each.
        warmup: Calls of each that are not counted.
    """
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for index in range(warmup + rounds):
        for name, run in list(variants.items())[:: -1 if index % 2 else 1]:
            start = time.perf_counter()
            run()
            if index >= warmup:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(seconds: Mapping[str, list[float]], name: str, baseline: str) -> float:
    """The median over the rounds of the time of `name` over that of `baseline`."""
    pairs = zip(seconds[name], seconds[baseline], strict=True)
    return statistics.median(one / other for one, other in pairs)
