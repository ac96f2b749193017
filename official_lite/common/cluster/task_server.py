"""The server that `ps` and `worker` processes run under `parameter_server`.

A parameter server holds variables and a worker computes steps, both as the chief commands. Neither
has a task or trainer of its own, so both run the same code. TensorFlow's servers never exit by
themselves. This server exits with code 0 in two cases:

* It receives SIGTERM. It then exits immediately, because it has nothing to save.
* The chief was present and has been gone for a minute. A chief that restarts within this minute
  finds its servers unchanged.

If no chief appears in the first ten minutes, the server exits with an error.
"""

import os
import signal
import threading
import time

import tensorflow as tf
from absl import logging

from official_lite.common import errors
from official_lite.common.cluster import reachability, tf_config

__all__ = ["fail_fast", "is_server", "serve"]


_JOBS = ("ps", "worker")

_SECONDS_BETWEEN_LOOKS = 2.0

_SECONDS_FOR_A_CHIEF_TO_COME = 600.0

_SECONDS_FOR_A_CHIEF_TO_COME_BACK = 60.0


def is_server(distribution_strategy: str) -> bool:
    """Return whether this process must call `serve` instead of training under this strategy."""
    if distribution_strategy.lower() != "parameter_server":
        return False
    found = tf_config.read_tf_config()
    return found is not None and found.task_type in _JOBS


def serve() -> None:
    """Run the server for this process's task in `TF_CONFIG` until it is told to stop.

    Raises:
        errors.ConfigValueError: If the process has no such task, or cannot listen at its address.
        errors.ClusterError: If no chief appeared.
    """
    found = tf_config.read_tf_config()
    if found is None or found.task_type not in _JOBS:
        raise errors.ConfigValueError(
            f"Only processes of the jobs {_JOBS} in TF_CONFIG can serve; this one is "
            f"{found.name if found else 'in no cluster'}."
        )
    fail_fast()
    server = _start(found)
    logging.info("%s serves at %s.", found.name, found.members(found.task_type)[found.name])
    _wait_for_the_end(found)
    del server


def fail_fast() -> None:
    """Make calls to a lost process fail instead of waiting for it.

    Call this before TensorFlow connects to other processes.
    """
    os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")


def _start(found: tf_config.ClusterConfig) -> tf.distribute.Server:
    # Each other process may have a call in progress here that waits for another process.
    threads = max(os.cpu_count() or 1, found.num_workers + 1)
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads)
    if found.task_type == "ps":
        # Variables are kept in host memory.
        config.device_count["GPU"] = 0
    jobs = {job: list(found.jobs[job]) for job in ("chief", *_JOBS) if job in found.jobs}
    try:
        return tf.distribute.Server(
            tf.train.ClusterSpec(jobs),
            job_name=found.task_type,
            task_index=found.task_index,
            protocol="grpc",
            config=config,
        )
    except tf.errors.OpError as error:
        address = found.members(found.task_type)[found.name]
        raise errors.ConfigValueError(
            f"{found.name} can't listen at its address {address} ({error.message}). Each process "
            "of a cluster needs an index and an address of its own."
        ) from error


def _wait_for_the_end(found: tf_config.ClusterConfig) -> None:
    stop = threading.Event()
    old_handler = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        chief = found.members("chief")
        last_seen: float | None = None
        started = time.monotonic()
        while not stop.wait(_SECONDS_BETWEEN_LOOKS):
            now = time.monotonic()
            if not reachability.unreachable(chief):
                last_seen = now
            elif last_seen is None and now - started > _SECONDS_FOR_A_CHIEF_TO_COME:
                raise errors.ClusterError(
                    f"{found.name} waited {_SECONDS_FOR_A_CHIEF_TO_COME:g} s, but no chief "
                    f"started at {chief['chief']}."
                )
            elif last_seen is not None and now - last_seen > _SECONDS_FOR_A_CHIEF_TO_COME_BACK:
                logging.info("The chief is gone. Stopping %s.", found.name)
                return
        logging.info("SIGTERM: stopping %s.", found.name)
    finally:
        signal.signal(signal.SIGTERM, old_handler)
