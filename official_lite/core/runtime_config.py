"""The config of what an experiment runs on: devices, precision, and how steps are executed.
"""

import dataclasses

from official_lite.common import cluster, errors
from official_lite.core import field_checks
from official_lite.modeling.hyperparams import base_config

__all__ = ["RuntimeConfig"]

EXECUTIONS = ("auto", "graph", "xla", "xla_loop", "eager")

PRECISIONS = ("float32", "float16", "bfloat16", "mixed_float16", "mixed_bfloat16")


@dataclasses.dataclass
class RuntimeConfig(base_config.Config):
    """Devices, precision and execution.

    Attributes:
        distribution_strategy: One of `off`, `one_device`, `mirrored`, `multi_worker_mirrored`,
            `parameter_server`, `tpu`.
        execution: How steps are executed: `graph`, `xla` (each step compiled by XLA), `xla_loop`
            (many steps in one program of XLA), `eager` (as plain Python, for debugging), or
            `auto`, which takes the fastest of the first three, if the training is long enough to
            find out.
        enable_xla: The Model Garden's word for `execution: xla`, on any device.
        tpu: Address or name of the TPU.
        num_gpus: GPUs to use on this host; 0 is the CPU, -1 all that are found.
        devices: The devices to use, such as `[CPU:0, CPU:1]`; None is what `num_gpus` says.
        worker_hosts: Comma-separated `host:port` of all workers; an alternative to `TF_CONFIG`.
        task_index: This worker's place in `worker_hosts`.
        all_reduce_alg: The collective's algorithm; None lets TensorFlow choose.
        num_packs: Into how many packs gradients are put for the all-reduce.
        mixed_precision_dtype: `float16`, `bfloat16` or None for full precision.
        loss_scale: `dynamic` or a fixed number; None is dynamic under float16.
        run_eagerly: The Model Garden's word for `execution: eager`.
        dataset_num_private_threads: Size of a thread pool for the input pipeline alone; None lets
            it share the threads that run steps.
        intra_op_parallelism_threads: CPU threads that share the work of one op; None leaves
            TensorFlow's number, one a core. Where ops are small, 1 is often faster: they run beside
            one another instead. A process has one number for all its runs, that of the first.
        tpu_enable_xla_dynamic_padder: Passed to TensorFlow's TPU options.
        seed: Seed of every random number in the run: initial weights, dropout, shuffling.
        gpu_thread_mode, per_gpu_thread_count, batchnorm_spatial_persistent,
            num_cores_per_replica, default_shard_dim, use_tpu_mp_strategy: Accepted from Model
            Garden files, with a warning; they have no effect.
    """

    distribution_strategy: str = "mirrored"
    execution: str = "auto"
    enable_xla: bool = False
    gpu_thread_mode: str | None = None
    dataset_num_private_threads: int | None = None
    intra_op_parallelism_threads: int | None = None
    per_gpu_thread_count: int = 0
    tpu: str | None = None
    num_gpus: int = -1
    devices: list[str] | None = None
    worker_hosts: str | None = None
    task_index: int = -1
    all_reduce_alg: str | None = None
    num_packs: int = 1
    mixed_precision_dtype: str | None = None
    loss_scale: str | float | None = None
    run_eagerly: bool = False
    batchnorm_spatial_persistent: bool = False
    tpu_enable_xla_dynamic_padder: bool | None = None
    num_cores_per_replica: int = 1
    default_shard_dim: int = -1
    use_tpu_mp_strategy: bool = False
    seed: int = 0

    def model_parallelism(self) -> dict[str, int]:
        """The Model Garden's keyword arguments for spatial partitioning; without effect here."""
        return {
            "num_cores_per_replica": self.num_cores_per_replica,
            "default_shard_dim": self.default_shard_dim,
        }

    def validate_fields(self) -> None:
        field_checks.require_not_negative(self, "seed")
        field_checks.require_positive_or_none(
            self, "dataset_num_private_threads", "intra_op_parallelism_threads"
        )
        field_checks.require_one_of(self, "distribution_strategy", cluster.STRATEGIES)
        field_checks.require_one_of(self, "execution", EXECUTIONS)
        if self.mixed_precision_dtype is not None:
            field_checks.require_one_of(self, "mixed_precision_dtype", PRECISIONS)
        if isinstance(self.loss_scale, str) and self.loss_scale != "dynamic":
            raise errors.ConfigValueError(
                f"`loss_scale` is {self.loss_scale!r}; wanted a number or 'dynamic'."
            )
