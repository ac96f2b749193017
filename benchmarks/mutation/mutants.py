"""The mutants: deliberate errors, and the test files that are expected to notice each of them."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A deliberate error: one replacement in the source of a module.

    Attributes:
        module: The module, relative to the package.
        description: What the mutant does wrong.
        snippet: A piece of the source that occurs once in the module.
        replacement: The text that replaces the snippet.
        tests: The test files that are expected to fail.
    """

    module: str
    description: str
    snippet: str
    replacement: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.module}: {self.description}"


@dataclasses.dataclass(frozen=True)
class Excluded:
    """A mutant that no test can notice.

    Attributes:
        module: The module, relative to the package.
        description: What the mutant changes.
        reason: Why the behavior stays the same.
    """

    module: str
    description: str
    reason: str


MUTANTS = (
    Mutant(
        "orbit/checkpointing.py",
        "restore does not wait for a save",
        "        self.wait()\n        manager = self._manager\n",
        "        manager = self._manager\n",
        ("tests/orbit/test_checkpointing.py",),
    ),
    Mutant(
        "orbit/hooks/hook.py",
        "if several hooks fail, the last error is raised",
        "            if first_error is None:\n                first_error = error\n",
        "            if first_error is not error:\n                first_error = error\n",
        ("tests/orbit/hooks/test_hook_list.py",),
    ),
    Mutant(
        "orbit/hooks/hook.py",
        "names of hook states changed",
        'f"{name}_{count[name] - 1}"',
        'f"{name}_{count[name]}"',
        ("tests/orbit/hooks/test_hook_states.py",),
    ),
    Mutant(
        "orbit/hooks/batch_norm_statistics.py",
        "also records inference calls",
        'if arguments.get("training"):',
        "if True:",
        ("tests/orbit/hooks/test_batch_norm_statistics.py",),
    ),
    Mutant(
        "common/preemption.py",
        "a process outside the strategy is treated as one of several workers",
        "    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):\n",
        "    if False:\n",
        ("tests/common/test_preemption.py",),
    ),
    Mutant(
        "modeling/distributed_gradients.py",
        "gradient transformers ignored",
        "for transformer in self.gradient_transformers:",
        "for transformer in ():",
        ("tests/modeling/test_distributed_gradients.py",),
    ),
    Mutant(
        "modeling/distributed_gradients.py",
        "loss scaling sums twice",
        "        with gradients_already_summed():\n            super()._stateful",
        "        with contextlib.nullcontext():\n            super()._stateful",
        ("tests/modeling/test_performance.py",),
    ),
    Mutant(
        "modeling/distributed_gradients.py",
        "loss scale unbounded",
        "        scale.assign(tf.clip_by_value(scale.value, *self._scale_bounds()))",
        "        scale.assign(scale.value)",
        ("tests/modeling/test_performance.py",),
    ),
    Mutant(
        "modeling/optimization/lr_schedule.py",
        "the rate after the offset exceeds the rate before it",
        "tf.where(step > 0, tf.minimum(after, before), before)",
        "tf.where(step > 0, after, before)",
        ("tests/modeling/optimization/test_lr_schedule.py",),
    ),
    Mutant(
        "modeling/distributed_gradients.py",
        "lazy rows decay excluded variables",
        "self.weight_decay and self._use_weight_decay(variable):",
        "self.weight_decay:",
        ("tests/modeling/test_update_steps.py",),
    ),
    Mutant(
        "modeling/distributed_gradients.py",
        "momentum of RMSprop's rows ignored",
        "            step += self.momentum * _read_rows(momentum, rows)\n",
        "",
        ("tests/modeling/test_update_steps.py",),
    ),
    Mutant(
        "modeling/replica_state.py",
        "variables averaged that the step does not write",
        "    if tf.executing_eagerly():\n        return list(variables)\n",
        "    return list(variables)\n",
        ("tests/modeling/test_replica_state.py",),
    ),
    Mutant(
        "checkpoint/commit.py",
        "no fsync before the commit file",
        "    for path in paths:\n        files.sync(path)\n",
        "",
        ("tests/checkpoint/test_commit.py",),
    ),
    Mutant(
        "checkpoint/committed_checkpoint_manager.py",
        "one damaged checkpoint: starts from scratch without an error",
        "is_first_save = not is_listed and len(damaged) == 1",
        "is_first_save = len(damaged) == 1",
        ("tests/checkpoint/test_committed_checkpoint_manager.py",),
    ),
    Mutant(
        "checkpoint/committed_checkpoint_manager.py",
        "the same step is saved twice",
        "return step != last_step and (interval is None or step - last_step >= interval)",
        "return interval is None or step - last_step >= interval",
        ("tests/checkpoint/test_committed_checkpoint_manager.py",),
    ),
    Mutant(
        "checkpoint/latest.py",
        "unlisted checkpoints between listed ones are not managed",
        "if path in listed or commit.step_of(path) > oldest]",
        "if path in listed]",
        ("tests/checkpoint/test_latest.py",),
    ),
    Mutant(
        "telemetry/event_storage.py",
        "an image of a graph wins over a later eager one",
        "{**new_images, **images}",
        "{**images, **new_images}",
        ("tests/telemetry/test_event_storage.py",),
    ),
    Mutant(
        "telemetry/event_storage.py",
        "the latest value mixes replicas and host",
        "            self._latest.clear()\n"
        "        else:\n"
        "            self._latest.pop(_ALL, None)\n",
        "            pass\n",
        ("tests/telemetry/test_event_storage.py",),
    ),
    Mutant(
        "telemetry/event_storage.py",
        "`from_graphs` ignored",
        "self._of_graphs.values() if from_graphs else ():",
        "self._of_graphs.values():",
        ("tests/telemetry/test_event_storage.py",),
    ),
    Mutant(
        "telemetry/text_file_writers.py",
        "warns for each lost line",
        "if not self._is_losing:",
        "if True:",
        ("tests/telemetry/test_text_file_writers.py",),
    ),
    Mutant(
        "data/arrays.py",
        "a resumed run repeats the order of epoch 0",
        "order_rows(epoch)[row:]",
        "order_rows(0)[row:]",
        ("tests/data/test_arrays.py",),
    ),
    Mutant(
        "data/arrays.py",
        "the data's own seed ignored",
        "seed = begin.seed if begin and seed is None else seed",
        "seed = begin.seed if begin else seed",
        ("tests/data/test_arrays.py",),
    ),
    Mutant(
        "data/file_reading.py",
        "resume at the end of an epoch reads that epoch",
        "while record >= (length",
        "while record > (length",
        ("tests/data/test_file_epochs.py",),
    ),
    Mutant(
        "data/file_reading.py",
        "the seed of the graph affects the order",
        "        tf.compat.v1.get_default_graph().seed = None\n",
        "",
        ("tests/data/test_file_epochs.py",),
    ),
    Mutant(
        "pipeline/run_pipeline.py",
        "phases may differ in threads",
        '    "intra_op_parallelism_threads",\n',
        "",
        ("tests/pipeline/test_run_pipeline.py",),
    ),
    Mutant(
        "common/keras_variables.py",
        "layer names of the next run continue the numbering",
        "        with fresh_names():\n            return build()\n",
        "        return build()\n",
        ("tests/core/test_layer_names.py",),
    ),
    Mutant(
        "nas/differentiable.py",
        "the unrolled step uses the gradient of one replica",
        "    gradients = distributed_gradients.sum_over_replicas(gradients)\n",
        "",
        ("tests/nas/test_differentiable.py",),
    ),
    Mutant(
        "nas/probes.py",
        "rewards accumulate over batches",
        "                metric.reset_state()\n",
        "                pass\n",
        ("tests/nas/test_probes.py",),
    ),
    Mutant(
        "nas/probes.py",
        "the reward ignores the other replicas",
        "if context.num_replicas_in_sync > 1:",
        "if False:",
        ("tests/nas/test_probes.py",),
    ),
    Mutant(
        "search/worker.py",
        "a trial is started once more than allowed",
        "if kills < self._job.config.max_starts",
        "if kills <= self._job.config.max_starts",
        ("tests/search/test_worker.py",),
    ),
    Mutant(
        "search/worker.py",
        "stops count as kills",
        " - frozen.user_attrs.get(_STOPS, 0)",
        "",
        ("tests/search/test_worker.py",),
    ),
    Mutant(
        "core/actions.py",
        "the loss of the best replica decides",
        "float(np.max(orbit.utils.get_value(losses)))",
        "float(np.min(orbit.utils.get_value(losses)))",
        ("tests/core/test_recovery.py",),
    ),
    Mutant(
        "search/worker.py",
        "a trial of a dead worker runs twice at once",
        "if is_trained_in(results.trial_dir(self._job.study_dir, frozen.number)):",
        "if False:",
        ("tests/search/test_worker.py",),
    ),
    Mutant(
        "core/actions.py",
        "events of the repeated steps reported twice",
        "            trainer.event_storage.discard()\n",
        "            pass\n",
        ("tests/core/test_recovery.py",),
    ),
    Mutant(
        "tools/trial_training.py",
        "suggestion after the lowest point",
        "np.log(np.asarray(learning_rates)))[: lowest + 1]",
        "np.log(np.asarray(learning_rates)))",
        ("tests/tools/test_trial_training.py",),
    ),
    Mutant(
        "tools/trial_training.py",
        "continues training after the loss has diverged",
        "        if _has_diverged(losses):\n            break\n",
        "",
        ("tests/tools/test_trial_training.py",),
    ),
    Mutant(
        "common/files.py",
        "`write_text` without fsync",
        "                file.flush()\n                os.fsync(file.fileno())\n",
        "                file.flush()\n",
        ("tests/common/test_files.py",),
    ),
    Mutant(
        "common/files.py",
        "temporary file left after an error",
        "        if exists(temporary):\n            remove(temporary)\n",
        "",
        ("tests/common/test_files.py",),
    ),
    Mutant(
        "orbit/hooks/saving_and_stopping.py",
        "an equal value counts as better",
        "return gain > by_more_than",
        "return gain >= by_more_than",
        ("tests/core/test_best_checkpoint.py",),
    ),
    Mutant(
        "common/distribute_utils.py",
        "num_gpus=-1 does not mean all GPUs",
        "count = found if num_gpus == -1 else num_gpus",
        "count = num_gpus",
        ("tests/common/test_distribute_utils.py",),
    ),
    Mutant(
        "common/suggestions.py",
        "dissimilar names are suggested",
        "cutoff=0.6",
        "cutoff=0.0",
        ("tests/common/test_suggestions.py",),
    ),
    Mutant(
        "orbit/hooks/saving_and_stopping.py",
        "a best value of NaN is never replaced",
        "if than is None or not np.isfinite(than):",
        "if than is None:",
        ("tests/core/test_best_checkpoint.py",),
    ),
    Mutant(
        "checkpoint/best_checkpoints.py",
        "every worker writes info.json",
        "if self.best is None or not directories.is_chief(self._strategy):",
        "if self.best is None:",
        ("tests/checkpoint/test_best_checkpoints.py", "tests/core/test_best_checkpoint.py"),
    ),
    Mutant(
        "core/step_metrics.py",
        "metrics of several replicas traced too",
        "if is_single and _is_of_keras(one)]",
        "if _is_of_keras(one)]",
        ("tests/core/test_step_metrics.py",),
    ),
    Mutant(
        "core/train_data.py",
        "replicas ignored in divisibility",
        "if data.global_batch_size % (count * num_replicas):",
        "if data.global_batch_size % count:",
        ("tests/core/test_train_data.py", "tests/core/test_micro_batches.py"),
    ),
    Mutant(
        "core/base_trainer.py",
        "BatchNorm statistics not averaged over replicas",
        "        self._moving_statistics.average()\n",
        "",
        (
            "tests/core/test_base_trainer_replica_step.py",
            "tests/end_to_end/test_replicas_agree.py",
        ),
    ),
    Mutant(
        "modeling/multitask/train_lib.py",
        "best checkpoints of several tasks without the positions in their data",
        "        checkpoint=trainer.checkpoint if trainer else None,\n",
        "",
        ("tests/modeling/multitask/test_train_lib.py",),
    ),
    Mutant(
        "core/base_trainer.py",
        "dropout seeds not a function of the step",
        "self._seeds.set(self.global_step.read_value())",
        "self._seeds.set(tf.zeros([], tf.int64))",
        ("tests/core/test_base_trainer_replica_step.py",),
    ),
    Mutant(
        "execution/executors.py",
        "the split step is also used on one replica",
        "        if self.strategy.num_replicas_in_sync == 1:\n            return super().replica",
        "        if False:\n            return super().replica",
        ("tests/execution/test_executors.py",),
    ),
    Mutant(
        "execution/auto.py",
        "the chosen loop continues with the data of its benchmark",
        "            loop.read(self._trainer.train_dataset)\n",
        "",
        ("tests/execution/test_auto.py",),
    ),
    Mutant(
        "execution/auto.py",
        "a mode is chosen without a minimum gain",
        "_GAIN = 0.95",
        "_GAIN = 1.0",
        ("tests/execution/test_auto.py",),
    ),
    Mutant(
        "execution/auto.py",
        "evaluation always uses the mode of training",
        'return mode if pays else "graph"',
        "return mode",
        ("tests/execution/test_auto.py",),
    ),
    Mutant(
        "execution/auto.py",
        "the record of a shorter run is reused",
        "known.holds_for(train_steps) and ",
        "",
        ("tests/execution/test_auto.py",),
    ),
    Mutant(
        "execution/auto.py",
        "evaluations of all data are not counted",
        "if steps == -1 and isinstance(trainer.eval_dataset, tf.data.Dataset):",
        "if False:",
        ("tests/execution/test_auto.py",),
    ),
    Mutant(
        "execution/auto.py",
        "every worker writes execution.json",
        "if record.seconds_per_step and directories.is_chief(trainer.strategy):",
        "if record.seconds_per_step:",
        ("tests/execution/test_auto.py",),
    ),
    Mutant(
        "run/model_dir_lock.py",
        "the new lock of another process may be removed",
        "            if holder is None or taken.id != holder.id:\n"
        "                files.rename(aside, self._path)\n"
        "                return\n",
        "            del taken\n",
        ("tests/run/test_model_dir_lock.py",),
    ),
    Mutant(
        "core/preflight.py",
        "validation files compared as well",
        "config.is_training and config.input_path",
        "config.input_path",
        ("tests/core/test_worker_consistency.py",),
    ),
    Mutant(
        "core/preflight.py",
        "task_index makes workers differ",
        "params.runtime.replace(task_index=-1, worker_hosts=None)",
        "params.runtime.replace(worker_hosts=None)",
        ("tests/core/test_worker_consistency.py",),
    ),
    Mutant(
        "core/preflight.py",
        "several replicas per worker: only rows of worker 0 are compared",
        "rows[:: len(rows) // num_workers]",
        "rows[:num_workers]",
        ("tests/core/test_worker_consistency.py",),
    ),
    Mutant(
        "core/continuous_finetune_lib.py",
        "fine-tunes beyond the last step",
        "        if last_step and step >= last_step:\n            return\n",
        "",
        ("tests/core/test_continuous_finetune_lib.py",),
    ),
    Mutant(
        "core/base_trainer.py",
        "validation metrics not reset",
        '        self._metric_groups.get("validation", self.validation_metrics).reset()\n',
        "",
        ("tests/core/test_base_trainer_evaluation.py",),
    ),
    Mutant(
        "core/base_trainer.py",
        "a loss of 0 is reported where there is none",
        "if float(tf.convert_to_tensor(self.validation_loss.count)) > 0:",
        "if True:",
        ("tests/core/test_base_trainer_evaluation.py",),
    ),
    Mutant(
        "modeling/optimization/ema_optimizer.py",
        "the EMA checkpoint holds swapped averages",
        "    with averaged_weights(optimizer), following_weights(optimizer):\n",
        "    with averaged_weights(optimizer):\n",
        ("tests/core/test_actions.py",),
    ),
    Mutant(
        "core/actions.py",
        "recovery off at 0 trials",
        "if config.recovery_max_trials >= 0:",
        "if config.recovery_max_trials > 0:",
        ("tests/core/test_actions.py",),
    ),
    Mutant(
        "orbit/controller.py",
        "the trainer is not notified of a restore",
        "                self.trainer.after_restore()\n",
        "                pass\n",
        ("tests/orbit/test_controller.py",),
    ),
    Mutant(
        "orbit/controller.py",
        "evaluation rate counts steps that were not run",
        "(evaluator.steps_run or steps) / seconds",
        "steps / seconds",
        ("tests/orbit/test_controller.py",),
    ),
    Mutant(
        "orbit/controller.py",
        "saves after an action has restored",
        "self._catch_up(plan)\n                return\n",
        "self._catch_up(plan)\n",
        ("tests/orbit/test_controller_loop.py",),
    ),
    Mutant(
        "orbit/controller.py",
        "an early stop saves although nothing was trained",
        "if self._checkpoints is not None and self.step > self.first_step:",
        "if self._checkpoints is not None:",
        ("tests/orbit/test_stop_check.py",),
    ),
    Mutant(
        "orbit/controller.py",
        "a pending evaluation is forgotten after a stop",
        "if self._evaluation_is_pending and self.checkpoint_manager is not None:",
        "if False:",
        ("tests/orbit/test_stop_check.py",),
    ),
    Mutant(
        "orbit/controller.py",
        "log_interval makes steps_per_loop unbounded",
        "return min(interval_end, step + self.length_at(step))",
        "return interval_end",
        ("tests/orbit/test_inner_loop.py",),
    ),
    Mutant(
        "orbit/controller.py",
        "a step counted twice is not noticed",
        "if reached != stop:",
        "if reached < stop:",
        ("tests/orbit/test_inner_loop.py",),
    ),
    Mutant(
        "orbit/xla_loops.py",
        "micro-batches ignored in the size of a stack",
        "max(1, bytes_per_batch * batches_per_step)",
        "max(1, bytes_per_batch)",
        ("tests/orbit/test_xla_loops.py",),
    ),
)

EXCLUDED = (
    Excluded(
        "modeling/optimization/lr_schedule.py",
        "boundary of step cosine (`step >= start` becomes `step > start`)",
        "The schedule is continuous: at a boundary, the decay that ends has the same value as the "
        "one that begins. In float32 they differ by at most a rounding error (1.2e-7 of the "
        "largest value, on 200 random schedules).",
    ),
    Excluded(
        "execution/auto.py",
        "resources with two types count as variables (`!= 1` becomes `< 1`)",
        "No captured resource has two types. Tables and iterators, the other resources of a step, "
        "have no handle data outside of a graph.",
    ),
    Excluded(
        "core/train_data.py",
        "aggregation of the skipped batches changed (`ONLY_FIRST_REPLICA` becomes `SUM` or `NONE`)",
        "The aggregation matters only for assignments in a replica. The variable is assigned only "
        "across replicas and by restores, with the same values on each replica in all cases.",
    ),
)
