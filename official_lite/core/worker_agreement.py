"""Whether all workers of a training were started with the same config and the same code.

Workers that compute different things wait for one another for ever, or average what does not
belong together.
"""

import hashlib
from typing import Any

import tensorflow as tf

from official_lite.common import errors
from official_lite.core import run_record

__all__ = ["require_agreement"]


def require_agreement(params: Any, strategy: tf.distribute.Strategy) -> None:
    """Compares the workers of a `MultiWorkerMirroredStrategy`; each of them calls it.

    Args:
        params: The config of the run. That of its place in the cluster may differ.
        strategy: The strategy; of any other class there is nothing to compare.

    Raises:
        errors.ConfigValueError: They differ; on all workers.
    """
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return
    runtime = params.runtime.replace(task_index=-1, worker_hosts=None)
    parts = {
        "config": run_record.config_sha256(params.replace(runtime=runtime)),
        "versions": repr(sorted(run_record.versions().items())),
    }
    numbers = tf.constant([[_number_of(text) for text in parts.values()]], tf.int64)
    rows = strategy.gather(strategy.run(lambda: numbers), axis=0).numpy().tolist()
    for name, *column in zip(parts, *rows, strict=True):
        others = [index for index, number in enumerate(column) if number != column[0]]
        if others:
            raise errors.ConfigValueError(
                f"The {name} of worker 0 and of worker {', '.join(map(str, others))} differ; all "
                "have to be started with the same command and the same installation. What each "
                "has is at the beginning of its log."
            )


def _number_of(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], signed=True)
