"""The config classes of an experiment: task, data, trainer, runtime, pipeline and prediction."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from absl import logging

from official_lite.common import errors, tf_config
from official_lite.config import phase_configs
from official_lite.modeling import hyperparams
from official_lite.modeling.hyperparams import base_config, field_checks, yaml_io
from official_lite.modeling.optimization.configs import optimization_config

__all__ = [
    "RuntimeConfig",
    "DataConfig",
    "ExperimentConfig",
    "OptimizationConfig",
    "PhaseConfig",
    "PipelineConfig",
    "PredictionConfig",
    "TaskConfig",
    "TrainerConfig",
    "base_config",
    "for_test",
    "require_test_data",
    "warn_about_dead_fields",
]


EXECUTIONS = ("auto", "graph", "xla", "xla_loop", "eager")

PRECISIONS = ("float32", "float16", "bfloat16", "mixed_float16", "mixed_bfloat16")

PREDICTION_FORMATS = ("jsonl", "parquet", "tfrecord")

PREDICTION_CHECKPOINTS = ("latest", "best", "init")

# Hints for PaddleRec config keys that have no counterpart of the same name here.
_HINTS_FOR_PADDLEREC = {
    "runner": (
        "PaddleRec's `runner` has several counterparts: the classes of its stages are named under "
        "`pipeline`, several runners are `phases`, and docs/stages.md lists the other keys."
    ),
}


@dataclasses.dataclass
class RuntimeConfig(base_config.Config):
    """The config of devices, precision and execution.

    Attributes:
        distribution_strategy: One of `off`, `one_device`, `mirrored`, `multi_worker_mirrored`,
            `parameter_server`, `tpu`.
        execution: How steps are executed: `graph`, `xla` (XLA compiles each step), `xla_loop`
            (many steps in one XLA program), `eager` (plain Python, for debugging), or `auto`, which
            uses the fastest of the first three if the training is long enough to benchmark them.
        enable_xla: The Model Garden's field for `execution: xla`, on any device.
        tpu: The address or name of the TPU.
        num_gpus: The number of GPUs to use on this host; 0 uses the CPU, -1 all available GPUs.
        devices: The devices to use, such as `[CPU:0, CPU:1]`; if None, `num_gpus` selects them.
        worker_hosts: Comma-separated `host:port` of all workers; an alternative to `TF_CONFIG`.
        task_index: This worker's index in `worker_hosts`.
        all_reduce_alg: The all-reduce algorithm; None lets TensorFlow choose.
        num_packs: The number of packs into which gradients are split for the all-reduce.
        mixed_precision_dtype: `float16`, `bfloat16` or None for full precision.
        loss_scale: `dynamic` or a fixed number; None means dynamic under float16.
        run_eagerly: The Model Garden's field for `execution: eager`.
        dataset_num_private_threads: The size of a private thread pool for the input pipeline; if
            None, the pipeline shares the threads that run steps.
        intra_op_parallelism_threads: The number of CPU threads that share the work of one op; None
            keeps TensorFlow's default, one thread per core. If ops are small, 1 is often faster,
            because ops then run in parallel with one another. The value of the first run applies to
            all runs of a process.
        xla_cache_dir: A directory in which XLA keeps the programs that it compiles for the CPU, so
            that later starts load them; None keeps none. Several runs may share it. The value of
            the first run applies to all runs of a process.
        tpu_enable_xla_dynamic_padder: Passed to TensorFlow's TPU options.
        seed: The seed of all random numbers of the run: initial weights, dropout, shuffling.
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
    xla_cache_dir: str | None = None
    tpu_enable_xla_dynamic_padder: bool | None = None
    num_cores_per_replica: int = 1
    default_shard_dim: int = -1
    use_tpu_mp_strategy: bool = False
    seed: int = 0

    def model_parallelism(self) -> dict[str, int]:
        """Return the Model Garden's keyword arguments for spatial partitioning.

        They have no effect here.
        """
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
                f"`loss_scale` is {self.loss_scale!r}; expected a number or 'dynamic'."
            )


OptimizationConfig = optimization_config.OptimizationConfig

PhaseConfig = phase_configs.PhaseConfig

# Fields that a Model Garden YAML file may set, but that have no counterpart here.
_DEAD_FIELDS = {
    "runtime": {
        "gpu_thread_mode": "set TF_GPU_THREAD_MODE in the environment",
        "per_gpu_thread_count": "set TF_GPU_THREAD_COUNT in the environment",
        "batchnorm_spatial_persistent": "cuDNN chooses this automatically",
        "num_cores_per_replica": "model parallelism is not supported",
        "default_shard_dim": "model parallelism is not supported",
        "use_tpu_mp_strategy": "model parallelism is not supported",
    },
    "trainer": {"allow_tpu_summary": "summaries are written at loop ends, on every device"},
}


@dataclasses.dataclass
class DataConfig(base_config.Config):
    """The config of a dataset: where examples come from and how they are batched.

    Attributes:
        input_path: Files, a glob, or a comma-separated list of either; to mix several sources, a
            mapping of names to such values. Mutually exclusive with `tfds_name`.
        tfds_name: A TensorFlow Datasets name, such as `mnist`.
        tfds_split: The TFDS split, such as `train` or `train[:90%]`.
        global_batch_size: The number of examples per optimizer update, over all replicas and
            micro-batches.
        is_training: Whether to shuffle and repeat the data.
        drop_remainder: Whether to drop the last partial batch. In evaluation this drops examples.
        shuffle_buffer_size: The number of examples in the shuffle buffer.
        cache: Whether to keep parsed examples in memory.
        cycle_length: The number of files to interleave; None means all, but at most 16.
        block_length: The number of consecutive records read from each interleaved file.
        ram_budget: The memory in GB that tf.data's autotuner may use.
        deterministic: Whether parallel reading keeps the order; None lets tf.data choose.
        sharding: Whether each input pipeline reads its own part of the data.
        enable_tf_data_service: Whether to read through the tf.data service.
        tf_data_service_address: The dispatcher of the service, such as `grpc://host:5000`.
        tf_data_service_job_name: The name under which several jobs share one pass over the data.
        tfds_data_dir: The directory in which TFDS stores its files.
        tfds_as_supervised: Whether TFDS yields `(input, label)` pairs.
        tfds_skip_decoding_feature: A comma-separated list of features to leave encoded.
        enable_shared_tf_data_service_between_parallel_trainers: Whether parallel trainers share
            one pass of the service.
        apply_tf_data_service_before_batching: Whether the service yields single examples.
        trainer_id: This trainer's name in such a shared pass.
        seed: The seed of the file order and of shuffling.
        prefetch_buffer_size: The number of batches to prefetch; None means 2, or the autotuner's
            choice if the autotuner is configured.
        autotune_algorithm: The name of a member of `tf.data.experimental.AutotuneAlgorithm`.
        num_examples: The number of examples in one pass over the data, used to convert epochs to
            steps; if None, or -1 as in the Model Garden, it is read from the dataset.
        skip_bad_records: The number of corrupt TFRecord records to skip, each with a warning; with
            0 the first corrupt record raises an error.
        source: The format of the files: `parquet`, `arrow`, `csv`, `huggingface` or `array_record`;
            empty means what the task reads, usually TFRecords. See docs/how_to/parquet.md.
        columns: The columns that the source reads; empty reads all columns.
        label_column: The column of labels, whose range the schema file records and checks.
        schema: The schema file, with which the columns of the source are compared before the run
            starts. The first run writes it. Empty means `data_schema.<block>.json` in the model
            directory, for example `data_schema.train_data.json`.

    `NAMES_FILES` says whether `input_path` must exist before a run begins. Set it to False in a
    subclass whose task creates the files or uses the field for something else.
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
    source: str = ""
    columns: list[str] = dataclasses.field(default_factory=list)
    label_column: str = ""
    schema: str = ""

    def validate_fields(self) -> None:
        field_checks.require_not_negative(
            self, "global_batch_size", "shuffle_buffer_size", "skip_bad_records"
        )
        if self.num_examples != -1:
            field_checks.require_positive_or_none(self, "num_examples")


@dataclasses.dataclass
class TrainerConfig(base_config.Config):
    """The config of the training loop: its length, its optimizer, and its intervals.

    All intervals are counted in steps, that is, optimizer updates. No interval needs to be a
    multiple of another. Values given in epochs are converted to steps before the run. If a later
    override sets epochs where steps were set, or the reverse, the later value applies; setting both
    in one file or one call is an error.

    Attributes:
        name: The class of a custom trainer: a registered name, `package.module:Class` or
            `file.py:Class`.
        optimizer_config: Optimizer, learning rate, warm-up and averaging.
        train_tf_while_loop, train_tf_function: Whether the training loop is one graph; turn them
            off for debugging.
        eval_tf_function, eval_tf_while_loop: The same for evaluation.
        steps_per_loop: The maximum number of steps per call of the compiled loop; training metrics
            are reported at this interval.
        summary_interval: The interval at which `tf.summary` calls inside the step are recorded.
        checkpoint_interval: The interval at which checkpoints are saved, in addition to the end of
            training; 0 saves none.
        max_to_keep: The number of checkpoints to keep.
        continuous_eval_timeout: The time in seconds after which `continuous_eval` stops if no new
            checkpoint appears.
        train_steps: The step at which training ends.
        validation_steps: The number of batches in an evaluation; -1 means all of them. The mode
            `test` always evaluates all of them.
        validation_interval: The interval at which `train_and_eval` evaluates; 0 evaluates only at
            the end.
        best_checkpoint_export_subdir: The subdirectory for the best checkpoint; empty keeps none.
        best_checkpoint_eval_metric: The validation metric that selects the best checkpoint; `a|b`
            is metric `b` of task `a`.
        best_checkpoint_metric_comp: Whether a `higher` or a `lower` value is better. If it is
            empty, the name of the metric decides: `lower` for a loss or an error, else `higher`.
        loss_upper_bound: A training loss above this bound is treated as a blow-up.
        recovery_begin_steps: The step from which `loss_upper_bound` applies.
        recovery_max_trials: How many times to restore the last checkpoint after a blow-up; 0 fails
            at the first blow-up, -1 disables the check.
        validation_summary_subdir: The subdirectory for the validation event files.
        preemption_on_demand_checkpoint: Whether multiple workers save a checkpoint when the
            platform announces a preemption. This applies to drivers that do not catch signals;
            `train.py` catches them and then always saves.
        grad_accum_steps: The number of micro-batches per update, each of
            `global_batch_size / grad_accum_steps` examples.
        fit_memory: Whether a run whose training step runs out of memory restarts from its latest
            checkpoint with twice as many micro-batches. See docs/how_to/out_of_memory.md.
        allow_tpu_summary: Accepted from Model Garden files, with a warning.
        hooks: The hooks of the run, called in this order at each event. Each is a registered name,
            `package.module:Class` or `{workspace}/file.py:Class`, or a mapping of such a `name` and
            the arguments of the constructor.
        writers: The writers of metrics, in the same form; with an empty list no metrics are
            written.
        log_interval: Steps between two reports of training metrics; 0 means `steps_per_loop`.
        freeze: Patterns of the variables that training does not change. Each pattern is a regular
            expression that is searched for in the variable's path.
        remat: Patterns of the layers whose activations the backward pass recomputes instead of
            keeping them in memory. Each pattern is a regular expression that is searched for in the
            layer's path. See docs/how_to/out_of_memory.md.
        train_epochs: The number of passes over the training data, instead of `train_steps`.
        validate_every_epochs: An interval in epochs, instead of `validation_interval`.
        checkpoint_every_epochs: An interval in epochs, instead of `checkpoint_interval`.
        steps_per_epoch: The number of steps in an epoch; 0 means the number of whole batches in the
            training data. If `train_data.num_examples` is set, the two must agree.
        overfit_batches: The number of training batches to train on repeatedly and to evaluate on,
            instead of all data, to check that a new model can learn at all. 0 is off.
        virtual_replicas: The number of shards into which every global batch is divided, so that the
            results are the same bits on any number of replicas that divides it. 0 is off: each
            replica gets one part. See docs/elastic.md.
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
    best_checkpoint_metric_comp: str = ""
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
    remat: list[str] = dataclasses.field(default_factory=list)
    train_epochs: float | None = None
    validate_every_epochs: float | None = None
    checkpoint_every_epochs: float | None = None
    steps_per_epoch: int = 0
    overfit_batches: int = 0
    virtual_replicas: int = 0
    fit_memory: bool = False

    def validate_fields(self) -> None:
        field_checks.require_not_negative(
            self,
            "train_steps",
            "summary_interval",
            "checkpoint_interval",
            "validation_interval",
            "log_interval",
            "steps_per_epoch",
            "virtual_replicas",
            "overfit_batches",
        )
        field_checks.require_positive(self, "steps_per_loop", "grad_accum_steps", "max_to_keep")
        field_checks.require_positive_or_none(
            self, "train_epochs", "validate_every_epochs", "checkpoint_every_epochs"
        )
        field_checks.require_patterns(self, "freeze", "remat")
        field_checks.require_subdirectories(
            self, "best_checkpoint_export_subdir", "validation_summary_subdir"
        )
        field_checks.require_one_of(self, "best_checkpoint_metric_comp", ("", "higher", "lower"))
        if self.validation_steps != -1 and self.validation_steps < 1:
            raise errors.ConfigValueError(
                f"`validation_steps` is {self.validation_steps}; expected a number of batches, or "
                "-1 for all validation data."
            )
        if math.isnan(self.loss_upper_bound):
            raise errors.ConfigValueError("`loss_upper_bound` is NaN; expected a number.")
        if bool(self.best_checkpoint_export_subdir) != bool(self.best_checkpoint_eval_metric):
            raise errors.ConfigValueError(
                "`best_checkpoint_export_subdir` and `best_checkpoint_eval_metric` must be set "
                f"together, or both left empty; got {self.best_checkpoint_export_subdir!r} and "
                f"{self.best_checkpoint_eval_metric!r}."
            )


@dataclasses.dataclass
class TaskConfig(base_config.Config):
    """The config of a task: its model and its data. Subclass it to add fields.

    Attributes:
        init_checkpoint: A checkpoint, or a directory of checkpoints, with the initial weights of a
            new run. It is not read once `model_dir` holds a checkpoint.
        model: The config of the model.
        train_data: The training data; None if the task provides its own.
        validation_data: The validation data; None if the task provides its own.
        predict_data: The data that `--mode=predict` reads; None means the validation data. An
            override of its fields completes it as that of `test_data`, except the fields that
            describe other data, such as `columns` and `num_examples`.
        test_data: The data that `--mode=test` evaluates. If it is None, an override of its fields
            starts with a copy of `validation_data`, so `task.test_data.input_path` may suffice.
        name: A name for the task's variables and logs.
        differential_privacy_config: Must be None. The Model Garden's method does not give the
            privacy that this field promises.
        allow_image_summary: Whether a vision task may write images.
        init_checkpoint_strict: Whether to raise an error if `init_checkpoint` lacks a weight or has
            it in another shape; False loads the weights that match and reports the rest.
        init_checkpoint_modules: The parts of the model to load: `all`, or the names of
            `model.checkpoint_items` or of layers, as a list or separated by commas.
        init_checkpoint_optimizer: What to load from the optimizer in `init_checkpoint`, for the
            weights that are loaded: `none`; `slots`, which are the moments of the optimizer and the
            moving averages of the weights; or `all`, which adds its step count and its loss scale.
            The learning rate is always that of the config. Without training, moving averages that
            the checkpoint and this optimizer both keep are always loaded, unless the task overrides
            `initialize`.
    """

    init_checkpoint: str = ""
    model: base_config.Config | None = None
    train_data: DataConfig | None = dataclasses.field(default_factory=DataConfig)
    validation_data: DataConfig | None = dataclasses.field(default_factory=DataConfig)
    predict_data: DataConfig | None = None
    test_data: DataConfig | None = None
    name: str | None = None
    differential_privacy_config: base_config.Config | None = None
    allow_image_summary: bool = False
    init_checkpoint_strict: bool = True
    init_checkpoint_modules: str | list[str] = "all"
    init_checkpoint_optimizer: str = "none"

    def validate_fields(self) -> None:
        field_checks.require_one_of(self, "init_checkpoint_optimizer", ("none", "slots", "all"))

    # Names of fields that contain the path of a file on which the model depends, such as a
    # vocabulary. If the contents of such a file change, the run is not resumed or evaluated.
    MODEL_FILES: ClassVar[tuple[str, ...]] = ()

    def read_model_files(self) -> dict[str, Any]:
        """Return the contents of small files on which the model depends, by the field's name.

        A run records these contents instead of the file names. Files that do not exist yet are
        skipped.
        """
        return {}

    def _merge(self, params: Mapping[str, Any], cursor: yaml_io.Cursor) -> None:
        for name in ("predict_data", "test_data"):
            if getattr(self, name) is None and isinstance(params.get(name), Mapping):
                # Initialize the block with the validation data. If the same override changes the
                # validation data, apply that change first.
                if (given := params.get("validation_data")) is not None:
                    below = cursor.key("validation_data", params)
                    self._set("validation_data", given, self.validation_data, below)
                setattr(self, name, self.validation_data)
                if name == "predict_data":
                    self._forget_the_validation_data(params[name])
        super()._merge(params, cursor)

    def _forget_the_validation_data(self, given: Mapping[str, Any]) -> None:
        """Reset the fields of `predict_data` that describe only the copied `validation_data`."""
        copied = self.predict_data
        if not isinstance(copied, DataConfig):
            return
        names = ["columns", "label_column", "schema", "num_examples", "enable_tf_data_service"]
        if given.get("input_path"):
            names += ["tfds_name", "tfds_split"]
        elif given.get("tfds_name"):
            names += ["input_path", "source"]
        defaults = type(copied)()
        copied.override({name: getattr(defaults, name) for name in names})


@dataclasses.dataclass
class PipelineConfig(base_config.Config):
    """The config of the stages of a run.

    Each stage is a registered name, `package.module:Class` or `{workspace}/file.py:Class`; an empty
    value selects the default stage. PaddleRec's names of the stages are accepted, too: instance,
    network, startup, runner and terminal, each also with the suffix `_class_path`.

    Attributes:
        prepare: Runs before anything is built: downloads, environment variables.
        build: Builds the strategy, task, model, optimizer and trainer.
        initialize: Restores the run's checkpoint, or loads `task.init_checkpoint`.
        run: Trains and evaluates.
        finalize: Cleans up, even after a failure.
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
class PredictionConfig(base_config.Config):
    """The config of `--mode=predict`: the weights to use and the files to write.

    Attributes:
        output_dir: The directory of the predictions. A relative path is in the model directory.
        format: The format of the files: `jsonl` (a JSON object per line), `parquet` or `tfrecord`.
            Parquet requires the extra `parquet`.
        rows_per_shard: The number of rows in a file. The last file may have fewer. A killed run
            repeats at most the rows of one file.
        checkpoint: The weights: `latest` for the latest checkpoint of the run, or
            `task.init_checkpoint` if the run has none; `best` for the best
            checkpoint, kept by `trainer.best_checkpoint_export_subdir` or else by a hook
            `best_checkpoint`; `init` for `task.init_checkpoint` in any case.
    """

    output_dir: str = "predictions"
    format: str = "jsonl"
    rows_per_shard: int = 10_000
    checkpoint: str = "latest"

    def validate_fields(self) -> None:
        field_checks.require_one_of(self, "format", PREDICTION_FORMATS)
        field_checks.require_one_of(self, "checkpoint", PREDICTION_CHECKPOINTS)
        field_checks.require_positive(self, "rows_per_shard")
        if not self.output_dir:
            raise errors.ConfigValueError("`output_dir` is empty; expected a directory.")


@dataclasses.dataclass
class ExperimentConfig(base_config.Config):
    """The config of an experiment: a task, how it is trained, and on which devices.

    Attributes:
        task: The model and its data.
        trainer: The training loop: its length, its optimizer, and its intervals.
        runtime: Devices, precision and execution.
        pipeline: The stages of the run.
        phases: Consecutive runs, each with its own overrides; empty for a single run.
        workspace: The directory that replaces `{workspace}` in all strings of the config; if empty,
            the directory of the config file that uses `{workspace}`.
        search: The search space and method of `--mode=search`; see `search.search_config`.
        prediction: The weights and the files of `--mode=predict`.
    """

    UNKNOWN_KEY_HINTS: ClassVar[Mapping[str, str]] = _HINTS_FOR_PADDLEREC

    task: TaskConfig = dataclasses.field(default_factory=TaskConfig)
    trainer: TrainerConfig = dataclasses.field(default_factory=TrainerConfig)
    runtime: RuntimeConfig = dataclasses.field(default_factory=RuntimeConfig)
    pipeline: PipelineConfig = dataclasses.field(default_factory=PipelineConfig)
    phases: list[phase_configs.PhaseConfig] = dataclasses.field(default_factory=list)
    workspace: str = ""
    search: hyperparams.FreeConfig | None = None
    prediction: PredictionConfig = dataclasses.field(default_factory=PredictionConfig)

    def validate_fields(self) -> None:
        if self.phases:
            phase_configs.require_order(self.phases)


def require_test_data(params: ExperimentConfig) -> None:
    """Check that a config supports the mode `test`.

    Raises:
        errors.ConfigValueError: If the config has several tasks or no test data.
    """
    has_eval_tasks = hyperparams.get_by_path(params, "eval_tasks")
    if has_eval_tasks or not isinstance(params.task, TaskConfig):
        raise errors.ConfigValueError(
            "The mode `test` supports only experiments with one task, but this one has several. "
            "Use the mode `eval`, with the test data as the validation data of each task."
        )
    if params.task.test_data is None:
        raise errors.ConfigValueError(
            "The mode `test` evaluates `task.test_data`, which is null. Set the fields in which it "
            "differs from `task.validation_data`, for example --set=task.test_data.input_path=…"
        )


def for_test(params: ExperimentConfig) -> ExperimentConfig:
    """Return the config with which the mode `test` evaluates: all test data as validation data.

    Every task and trainer that evaluates the validation data of its config can therefore test.

    Raises:
        errors.ConfigError: If the config has several tasks or no test data, or if the task does not
            support the class of the test data.
    """
    require_test_data(params)
    tested = params.replace(
        task={"validation_data": params.task.test_data},
        # A compiled evaluation loop requires a number of steps.
        trainer={"validation_steps": -1, "overfit_batches": 0, "eval_tf_while_loop": False},
    )
    tested.lock()
    return tested


def warn_about_dead_fields(params: hyperparams.Config) -> None:
    """Log a warning for each field that is set but has no effect."""
    for path, value, hint in _dead_fields_in_use(params):
        logging.warning("`%s: %s` has no effect here: %s.", path, value, hint)


def _dead_fields_in_use(params: hyperparams.Config) -> Iterator[tuple[str, Any, str]]:
    for block_name, fields in _DEAD_FIELDS.items():
        block = hyperparams.get_by_path(params, block_name)
        defaults = {f.name: f.default for f in dataclasses.fields(block)} if block else {}
        for name, hint in fields.items():
            if name in defaults and getattr(block, name) != defaults[name]:
                yield f"{block_name}.{name}", getattr(block, name), hint
    path = "trainer.optimizer_config.optimizer"
    choice = hyperparams.get_by_path(params, path)
    optimizer = choice.get() if choice is not None else None
    limit = hyperparams.get_by_path(optimizer, "gradient_clip_norm", 0.0)
    for name in ("clipnorm", "global_clipnorm", "clipvalue"):
        value = hyperparams.get_by_path(optimizer, name)
        if value is not None and 0 < limit <= value:
            hint = (
                f"`gradient_clip_norm: {limit:g}` clips all gradients first; set it to 0 to use "
                f"`{name}` instead"
            )
            yield f"{path}.{choice.type}.{name}", value, hint
