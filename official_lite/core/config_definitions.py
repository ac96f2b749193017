"""The config of an experiment: what is trained, how, on what data, and on which devices."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from absl import logging

from official_lite.cluster import tf_config
from official_lite.common import errors
from official_lite.config import phase_configs
from official_lite.modeling import hyperparams
from official_lite.modeling.hyperparams import base_config, field_checks
from official_lite.modeling.optimization.configs import optimization_config

__all__ = [
    "RuntimeConfig",
    "DataConfig",
    "ExperimentConfig",
    "OptimizationConfig",
    "PhaseConfig",
    "PipelineConfig",
    "TaskConfig",
    "TrainerConfig",
    "base_config",
    "warn_about_dead_fields",
]


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
        field_checks.require_one_of(self, "distribution_strategy", tf_config.STRATEGIES)
        field_checks.require_one_of(self, "execution", EXECUTIONS)
        if self.mixed_precision_dtype is not None:
            field_checks.require_one_of(self, "mixed_precision_dtype", PRECISIONS)
        if isinstance(self.loss_scale, str) and self.loss_scale != "dynamic":
            raise errors.ConfigValueError(
                f"`loss_scale` is {self.loss_scale!r}; wanted a number or 'dynamic'."
            )


OptimizationConfig = optimization_config.OptimizationConfig

PhaseConfig = phase_configs.PhaseConfig

# Fields that a Model Garden YAML may set and that have no counterpart here.
_DEAD_FIELDS = {
    "runtime": {
        "gpu_thread_mode": "set TF_GPU_THREAD_MODE in the environment",
        "per_gpu_thread_count": "set TF_GPU_THREAD_COUNT in the environment",
        "batchnorm_spatial_persistent": "cuDNN chooses this by itself",
        "num_cores_per_replica": "model parallelism is not supported",
        "default_shard_dim": "model parallelism is not supported",
        "use_tpu_mp_strategy": "model parallelism is not supported",
    },
    "trainer": {"allow_tpu_summary": "summaries are written at loop ends, on every device"},
}


@dataclasses.dataclass
class DataConfig(base_config.Config):
    """Where examples come from and how they are batched.

    Attributes:
        input_path: Files, a glob, a comma-separated list of either, or a mapping of names to
            them for mixing several sources. Exclusive with `tfds_name`.
        tfds_name: A TensorFlow Datasets name, such as `mnist`.
        tfds_split: The TFDS split, such as `train` or `train[:90%]`.
        global_batch_size: Examples per optimizer update, over all replicas and micro-batches.
        is_training: Whether to shuffle and repeat.
        drop_remainder: Whether to drop the last partial batch. In evaluation this drops examples.
        shuffle_buffer_size: Examples in the shuffle buffer.
        cache: Whether to keep parsed examples in memory.
        cycle_length: Files read in turn; None takes all, but at most 16.
        block_length: Consecutive records taken from each of them.
        ram_budget: GB that tf.data's autotuner may use.
        deterministic: Whether parallel reading keeps the order; None lets tf.data choose.
        sharding: Whether each input pipeline reads its own part of the data.
        enable_tf_data_service: Whether to read through the tf.data service.
        tf_data_service_address: Its dispatcher, such as `grpc://host:5000`.
        tf_data_service_job_name: A name under which several jobs share one pass.
        tfds_data_dir: Where TFDS keeps its files.
        tfds_as_supervised: Whether TFDS gives `(input, label)` pairs.
        tfds_skip_decoding_feature: Comma-separated features that stay encoded.
        enable_shared_tf_data_service_between_parallel_trainers: Whether parallel trainers share
            one pass of the service.
        apply_tf_data_service_before_batching: Whether the service gives single examples.
        trainer_id: This trainer's name in such a shared pass.
        seed: Seed of file order and shuffling.
        prefetch_buffer_size: Batches prepared ahead; None is 2, or what the autotuner chooses.
        autotune_algorithm: A member name of `tf.data.experimental.AutotuneAlgorithm`.
        num_examples: Examples in one pass over the data, for whatever is given in epochs; None
            asks the dataset.
        skip_bad_records: How many damaged records of TFRecord files may be left out, one by one and
            each with a warning; 0 makes the first one an error.

    `NAMES_FILES` says that `input_path` has to be there before a run begins. A subclass whose task
    brings the files, or takes the field for something else, sets it to False.
    """

    NAMES_FILES: ClassVar[bool] = True

    input_path: Sequence[str] | str | base_config.Config = ""
    tfds_name: str | base_config.Config = ""
    tfds_split: str = ""
    global_batch_size: int = 0
    is_training: bool | None = None
    drop_remainder: bool = True
    shuffle_buffer_size: int = 100
    cache: bool = False
    cycle_length: int | None = None
    block_length: int = 1
    ram_budget: int | None = None
    deterministic: bool | None = None
    sharding: bool = True
    enable_tf_data_service: bool = False
    tf_data_service_address: str | None = None
    tf_data_service_job_name: str | None = None
    tfds_data_dir: str = ""
    tfds_as_supervised: bool = False
    tfds_skip_decoding_feature: str = ""
    enable_shared_tf_data_service_between_parallel_trainers: bool = False
    apply_tf_data_service_before_batching: bool = False
    trainer_id: str | None = None
    seed: int | None = None
    prefetch_buffer_size: int | None = None
    autotune_algorithm: str | None = None
    num_examples: int | None = None
    skip_bad_records: int = 0

    def validate_fields(self) -> None:
        field_checks.require_not_negative(
            self, "global_batch_size", "shuffle_buffer_size", "skip_bad_records"
        )
        field_checks.require_positive_or_none(self, "num_examples")


@dataclasses.dataclass
class TrainerConfig(base_config.Config):
    """How long to train, and what happens when. Every interval is in steps, of optimizer updates.

    No interval has to divide another. What is given in epochs becomes steps before the run. Of the
    two the one given later counts; both at once, in one file or one call, are an error.

    Attributes:
        name: A trainer of one's own: a registered name, `package.module:Class` or `file.py:Class`.
        optimizer_config: Optimizer, learning rate, warm-up and averaging.
        train_tf_while_loop, train_tf_function: Whether the training loop is one graph; off for
            debugging.
        eval_tf_function, eval_tf_while_loop: The same for evaluation.
        steps_per_loop: The most steps to run between two looks from Python; training metrics are
            reported this often.
        summary_interval: How often `tf.summary` calls inside the step are recorded.
        checkpoint_interval: How often to save, and at the end; 0 saves nothing.
        max_to_keep: Checkpoints kept.
        continuous_eval_timeout: Seconds without a new checkpoint after which `continuous_eval`
            gives up.
        train_steps: The step at which training ends.
        validation_steps: Batches in an evaluation; -1 is all of them.
        validation_interval: How often `train_and_eval` evaluates; 0 evaluates at the end only.
        best_checkpoint_export_subdir: Where the best checkpoint goes; empty keeps none.
        best_checkpoint_eval_metric: The validation metric it is chosen by; `a|b` names metric
            `b` of task `a`.
        best_checkpoint_metric_comp: `higher` or `lower`.
        loss_upper_bound: A training loss above it counts as a blow-up.
        recovery_begin_steps: The step from which that bound holds.
        recovery_max_trials: How often to go back to the last checkpoint after a blow-up; 0 fails
            at the first one, -1 does not look.
        validation_summary_subdir: Where the validation event files go.
        preemption_on_demand_checkpoint: Whether several workers save when the platform announces
            preemption, in a driver that does not catch signals; `train.py` does, and saves then.
        grad_accum_steps: Micro-batches per update, each of `global_batch_size / grad_accum_steps`
            examples.
        allow_tpu_summary: Accepted from Model Garden files, with a warning.
        hooks: What else happens at each event of the run, in order: a registered name,
            `package.module:Class` or `{workspace}/file.py:Class`, or such a `name` with the
            arguments of the constructor.
        writers: Where metrics go, in the same form; none leaves a run without metrics.
        log_interval: Steps between two reports of training metrics; 0 is `steps_per_loop`.
        freeze: Patterns of variables that training leaves as they are. A pattern is a regular
            expression that is looked for in the variable's path.
        train_epochs: Passes over the training data, in the place of `train_steps`.
        validate_every_epochs: The same, for `validation_interval`.
        checkpoint_every_epochs: The same, for `checkpoint_interval`.
        steps_per_epoch: Steps in an epoch; 0 is as many as the training data has whole batches.
            Beside `train_data.num_examples`, it has to be that number.
        overfit_batches: How many batches of the training data to train on, over and over, and to
            evaluate on, in the place of all data: what a new model has to learn first. 0 is off.
    """

    CLEARS: ClassVar[Mapping[str, str]] = {
        "train_steps": "train_epochs",
        "validation_interval": "validate_every_epochs",
        "checkpoint_interval": "checkpoint_every_epochs",
    }

    name: str | None = None
    optimizer_config: OptimizationConfig = dataclasses.field(default_factory=OptimizationConfig)
    train_tf_while_loop: bool = True
    train_tf_function: bool = True
    eval_tf_function: bool = True
    eval_tf_while_loop: bool = False
    allow_tpu_summary: bool = False
    steps_per_loop: int = 1000
    summary_interval: int = 1000
    checkpoint_interval: int = 1000
    max_to_keep: int = 5
    continuous_eval_timeout: int = 60 * 60
    train_steps: int = 0
    validation_steps: int = -1
    validation_interval: int = 1000
    best_checkpoint_export_subdir: str = ""
    best_checkpoint_eval_metric: str = ""
    best_checkpoint_metric_comp: str = "higher"
    loss_upper_bound: float = 1e6
    recovery_begin_steps: int = 0
    recovery_max_trials: int = 0
    validation_summary_subdir: str = "validation"
    preemption_on_demand_checkpoint: bool = True
    grad_accum_steps: int = 1
    hooks: list[str | hyperparams.PluginConfig] = dataclasses.field(default_factory=list)
    writers: list[str | hyperparams.PluginConfig] = dataclasses.field(
        default_factory=lambda: ["console", "jsonl", "tensorboard"]
    )
    log_interval: int = 0
    freeze: list[str] = dataclasses.field(default_factory=list)
    train_epochs: float | None = None
    validate_every_epochs: float | None = None
    checkpoint_every_epochs: float | None = None
    steps_per_epoch: int = 0
    overfit_batches: int = 0

    def validate_fields(self) -> None:
        field_checks.require_not_negative(
            self,
            "train_steps",
            "summary_interval",
            "checkpoint_interval",
            "validation_interval",
            "log_interval",
            "steps_per_epoch",
            "overfit_batches",
        )
        field_checks.require_positive(self, "steps_per_loop", "grad_accum_steps", "max_to_keep")
        field_checks.require_positive_or_none(
            self, "train_epochs", "validate_every_epochs", "checkpoint_every_epochs"
        )
        field_checks.require_patterns(self, "freeze")
        field_checks.require_subdirectories(
            self, "best_checkpoint_export_subdir", "validation_summary_subdir"
        )
        field_checks.require_one_of(self, "best_checkpoint_metric_comp", ("higher", "lower"))
        if self.validation_steps != -1 and self.validation_steps < 1:
            raise errors.ConfigValueError(
                f"`validation_steps` is {self.validation_steps}; wanted a number of batches, or -1 "
                "for the whole validation data."
            )
        if math.isnan(self.loss_upper_bound):
            raise errors.ConfigValueError("`loss_upper_bound` is NaN; wanted a number.")
        if bool(self.best_checkpoint_export_subdir) != bool(self.best_checkpoint_eval_metric):
            raise errors.ConfigValueError(
                "`best_checkpoint_export_subdir` and `best_checkpoint_eval_metric` belong "
                f"together; got {self.best_checkpoint_export_subdir!r} and "
                f"{self.best_checkpoint_eval_metric!r}."
            )


@dataclasses.dataclass
class TaskConfig(base_config.Config):
    """What is learnt from what. Subclass it to add fields of your own.

    Attributes:
        init_checkpoint: Checkpoint, or directory of checkpoints, whose weights a fresh run starts
            from. It is not read once `model_dir` holds a checkpoint.
        model: The model's own config.
        train_data: Training data; None if the task brings its own.
        validation_data: Validation data; None if the task brings its own.
        name: A name for the task's variables and logs.
        differential_privacy_config: Refused unless None: it would promise a privacy that the Model
            Garden's method does not give.
        allow_image_summary: Whether a vision task may write images.
        init_checkpoint_strict: Whether a weight that `init_checkpoint` lacks, or has in another
            shape, is an error; False loads what fits and reports the rest.
        init_checkpoint_modules: Which parts of the model are loaded: `all`, or the names of
            `model.checkpoint_items` or of layers, in a list or separated by commas.
    """

    init_checkpoint: str = ""
    model: base_config.Config | None = None
    train_data: DataConfig | None = dataclasses.field(default_factory=DataConfig)
    validation_data: DataConfig | None = dataclasses.field(default_factory=DataConfig)
    name: str | None = None
    differential_privacy_config: base_config.Config | None = None
    allow_image_summary: bool = False
    init_checkpoint_strict: bool = True
    init_checkpoint_modules: str | list[str] = "all"


@dataclasses.dataclass
class PipelineConfig(base_config.Config):
    """The stages of a run; each is a registered name, `package.module:Class` or
    `{workspace}/file.py:Class`, and the default one if it is empty.

    PaddleRec's words for them are understood, too: instance, network, startup, runner, terminal,
    and each of these with `_class_path`.

    Attributes:
        prepare: Before anything is built: downloads, environment variables.
        build: Makes strategy, task, model, optimizer and trainer.
        initialize: Restores the run's checkpoint, or loads `task.init_checkpoint`.
        run: Trains and evaluates.
        finalize: Tidies up, also after a failure.
    """

    ALIASES: ClassVar[Mapping[str, str]] = {
        alias + ending: field
        for alias, field in {
            "instance": "prepare",
            "network": "build",
            "startup": "initialize",
            "runner": "run",
            "terminal": "finalize",
        }.items()
        for ending in ("", "_class_path")
    }

    prepare: str = ""
    build: str = ""
    initialize: str = ""
    run: str = ""
    finalize: str = ""


@dataclasses.dataclass
class ExperimentConfig(base_config.Config):
    """One experiment: a task, how it is trained, and on which devices.

    Attributes:
        task: What is learnt from what.
        trainer: How long to train, and what happens when.
        runtime: Devices, precision and execution.
        pipeline: The stages of the run.
        phases: Several runs in a row, each with its overrides; none is a single run.
        workspace: What `{workspace}` stands for in every text of the config; empty for the
            directory of the config file that uses it.
        search: What `--mode=search` looks for, and how; see `search.search_config`.
    """

    task: TaskConfig = dataclasses.field(default_factory=TaskConfig)
    trainer: TrainerConfig = dataclasses.field(default_factory=TrainerConfig)
    runtime: RuntimeConfig = dataclasses.field(default_factory=RuntimeConfig)
    pipeline: PipelineConfig = dataclasses.field(default_factory=PipelineConfig)
    phases: list[phase_configs.PhaseConfig] = dataclasses.field(default_factory=list)
    workspace: str = ""
    search: hyperparams.FreeConfig | None = None

    def validate_fields(self) -> None:
        phase_configs.require_order(self.phases)

    def _unknown_key(self, key: Any, cursor: Any) -> errors.UnknownKeyError:
        if key != "runner":
            return super()._unknown_key(key, cursor)
        return errors.UnknownKeyError(
            f"{cursor}: PaddleRec's `runner` is taken apart here: its classes are named under "
            "`pipeline`, several runners are `phases`, and docs/stages.md has the other keys."
        )


def warn_about_dead_fields(params: hyperparams.Config) -> None:
    """Logs one line for each field that is set, for the Model Garden's sake, without effect."""
    for path, value, hint in _dead_fields_in_use(params):
        logging.warning("`%s: %s` has no effect here: %s.", path, value, hint)


def _dead_fields_in_use(params: hyperparams.Config) -> Iterator[tuple[str, Any, str]]:
    for block_name, fields in _DEAD_FIELDS.items():
        block = getattr(params, block_name, None)
        defaults = {f.name: f.default for f in dataclasses.fields(block)} if block else {}
        for name, hint in fields.items():
            if name in defaults and getattr(block, name) != defaults[name]:
                yield f"{block_name}.{name}", getattr(block, name), hint
