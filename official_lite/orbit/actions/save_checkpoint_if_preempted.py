"""An action that saves a checkpoint when the platform announces a preemption."""

from typing import Any

import tensorflow as tf

from official_lite.orbit import runner


class SaveCheckpointIfPreempted:
    """An action that saves a checkpoint on all workers once a preemption is announced.

    It wraps `tf.distribute.experimental.PreemptionCheckpointHandler`, which makes the workers agree
    on the step at which they save.

    Args:
        cluster_resolver: Describes the cluster.
        checkpoint_manager: The checkpoint manager that saves.
        checkpoint_number: The number of the checkpoint, usually the global step.
        keep_running_after_save: Whether to continue training after the save instead of exiting, for
            platforms on which the process itself recovers.
    """

    def __init__(
        self,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver,
        checkpoint_manager: tf.train.CheckpointManager,
        checkpoint_number: Any = None,
        keep_running_after_save: bool = False,
    ) -> None:
        self._checkpoint_number = checkpoint_number
        termination = tf.distribute.experimental.TerminationConfig(exit_fn=lambda: None)
        self._preemption_handler = tf.distribute.experimental.PreemptionCheckpointHandler(
            cluster_resolver,
            checkpoint_manager,
            termination_config=termination if keep_running_after_save else None,
        )

    def __call__(self, output: runner.Output) -> None:
        self._preemption_handler.save_checkpoint_if_preempted(
            checkpoint_number=self._checkpoint_number, check_interval=False
        )
