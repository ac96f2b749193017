"""Studies, run from the config of an experiment or from the four parts of an NNI experiment."""

import os
from collections.abc import Callable, Collection, Mapping
from multiprocessing.context import SpawnProcess
from typing import Any

import optuna
from absl import logging
from optuna.trial import TrialState

from official_lite.common import errors, files, tf_config
from official_lite.config import compatibility, parsing
from official_lite.core import config_definitions as cfg
from official_lite.modeling import hyperparams
from official_lite.search import evaluators, results, samplers, search_config, storage, worker
from official_lite.search.evaluators import ExperimentEvaluator, ModelEvaluator, space_of
from official_lite.search.search_config import Space
from official_lite.search.trial_run import Outcome, TrialRun

__all__ = ["Experiment", "run_search", "run_study"]


def run_search(
    params: cfg.ExperimentConfig, study_dir: str, *, allow_config_change: bool = False
) -> optuna.Study:
    """Run the study that `params.search` describes. `--mode=search` calls this function.

    Args:
        params: The config of the experiment.
        study_dir: The directory of the study. The trials run in its subdirectories `trials/0000`,
            `trials/0001` and so on.
        allow_config_change: Whether to resume a study even if the experiment's config has changed.

    Returns:
        The study with all its trials.

    Raises:
        errors.OfficialLiteError: If the study fails for a reason that the user can fix.
    """
    _refuse_cluster()
    params, study_dir = parsing.expand_home(params), files.expand_home(study_dir)
    config = search_config.search_config_of(params)
    if not config.evaluator and not config.metrics:
        raise errors.ConfigValueError(
            "`search.metric` is empty; expected the name of an evaluation metric."
        )
    experiment = ExperimentEvaluator(params, allow_config_change=allow_config_change)
    experiment.check(Space(config.space))
    evaluator = evaluators.evaluator_of(config, params) if config.evaluator else experiment
    origin, optional_origin = experiment.origin()
    return run_study(
        evaluator,
        config,
        study_dir,
        origin=origin,
        optional_origin=optional_origin,
        allow_config_change=allow_config_change,
    )


def run_study(
    evaluator: Callable[[TrialRun], Any],
    config: search_config.SearchConfig,
    study_dir: str,
    *,
    origin: dict[str, Any] | None = None,
    optional_origin: Collection[str] = (),
    allow_config_change: bool = False,
) -> optuna.Study:
    """Run a study to its end, or resume it if it was interrupted.

    Several processes may run the same study at the same time, on one host or on several hosts that
    share the directory: call this function in each of them.

    Args:
        evaluator: Callable that runs a trial. It takes a `TrialRun` and returns a number, a
            sequence with one number for each direction, or a dict of metrics.
        config: The config of the study.
        study_dir: The directory of the study.
        origin: Further settings that must not change for trial values to be comparable.
        optional_origin: The names in `origin` that the record of an existing study may lack.
        allow_config_change: Whether `origin` may differ from the recorded one.

    Returns:
        The study with all its trials.

    Raises:
        errors.ConfigError: If the config is invalid. Nothing has been written then.
        errors.OfficialLiteError: If no trial has produced a value, and none is still running in
            another process.
    """
    config.validate()
    space = Space(config.space)
    samplers.create_sampler(config, space)
    samplers.create_pruner(config)
    what = compatibility.flatten(
        {"search": {"space": config.space.as_dict(), "metric": config.metrics}}
    )
    study = storage.create_study(
        config,
        study_dir,
        origin={**(origin or {}), **what},
        optional_origin=optional_origin,
        allow_config_change=allow_config_change,
    )
    _check_directory(study, study_dir)
    hyperparams.save_params_dict_to_yaml(config, os.path.join(study_dir, storage.CONFIG_FILE))
    job = worker.StudyJob(evaluator=evaluator, config=config, study_dir=study_dir)
    if config.num_workers > 1:
        _run_workers(job, study)
    else:
        worker.run_worker(job)
    results.write(study, space, config, study_dir)
    _require_a_value(study, study_dir)
    _tell_of_running_trials(study)
    table = results.table(study, space, config)
    logging.info("%s\n%s%s", study_dir, table, results.describe_best(study, config, study_dir))
    return study


def _refuse_cluster() -> None:
    found = tf_config.read_tf_config()
    if found is not None and sum(map(len, found.jobs.values())) > 1:
        raise errors.ConfigValueError(
            "TF_CONFIG describes processes that train together, but a trial runs in one process. "
            "Unset TF_CONFIG. To run trials in several processes, start the search several times "
            "with the same `model_dir`."
        )


def _check_directory(study: optuna.Study, study_dir: str) -> None:
    """Check that a new study's directory has no trials of another study; warn if it has a run."""
    trials = os.path.join(study_dir, "trials")
    if study.get_trials(deepcopy=False):
        return
    if files.list_names(trials):
        raise errors.ConfigValueError(
            f"{trials} contains trials of a study that is not in the storage. Remove this "
            "directory, use another `model_dir`, or set `search.storage` to the storage of that "
            "study."
        )
    if compatibility.read_run(study_dir):
        logging.warning("%s already contains a run. Use another `model_dir`.", study_dir)


def _run_workers(job: worker.StudyJob, study: optuna.Study) -> None:
    """Run the study with several worker processes.

    A failed worker is restarted if trials have started since the last failure, or if an interrupted
    trial remains. The number of restarts is limited.
    """
    outputs = os.path.join(job.study_dir, "workers")
    running: list[SpawnProcess] = []
    names: dict[SpawnProcess, str] = {}
    failures: list[str] = []

    def start(name: str) -> None:
        path = os.path.join(outputs, f"{name}.txt")
        process = worker.start_process(worker.run_worker, job, output_path=path)
        running.append(process)
        names[process] = name

    with worker.raise_on_sigterm(), worker.ended_with_us(running):
        for number in range(job.config.num_workers):
            start(str(number))
        num_restarts, num_begun = 0, 0
        while running:
            ended = worker.wait_for_any(running)
            running.remove(ended)
            worker.raise_if_stopped(ended, f"Worker {names[ended]}", outputs)
            if not ended.exitcode:
                continue
            how = f"worker {names[ended]} ended {worker.describe_end(ended)}"
            before, num_begun = num_begun, worker.num_begun(study)
            # Another worker may already have resumed the trial of the failed worker, which also
            # increases the number of started trials.
            is_left = num_begun > before or worker.has_broken_off_trials(study, job.study_dir)
            if is_left and num_restarts < job.config.num_trials * job.config.max_starts:
                num_restarts += 1
                logging.warning("%s; restarting it.", how)
                start(names[ended])
            else:
                failures.append(how)
    if failures:
        raise errors.OfficialLiteError(
            f"Some workers failed: {', '.join(failures)}. See their output in {outputs}."
        )


def _tell_of_running_trials(study: optuna.Study) -> None:
    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    if running:
        numbers = ", ".join(str(trial.number) for trial in running)
        logging.warning("Other processes are still running these trials of the study: %s.", numbers)


def _require_a_value(study: optuna.Study, study_dir: str) -> None:
    trials = study.get_trials(deepcopy=False)
    # Trials of other workers that are still running may produce a value.
    states = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
    if any(trial.state in states for trial in trials):
        return
    last = Outcome.read(results.trial_dir(study_dir, len(trials) - 1))
    raise errors.OfficialLiteError(
        f"None of the {len(trials)} trials has a value; see `trial.json` in each trial's directory."
        + (f" The last trial: {last.reason}" if last else "")
    )


class Experiment:
    """A study with the four parts of an NNI experiment: base model, trainer, mutators, strategy.

    ::

        def fit(model, dataloader):
            train(model, dataloader)
            search.report_final_result(test(model, dataloader))

        trainer = search.FunctionalTrainer(fit, dataloader=...)
        experiment = search.Experiment(build_model, trainer, space, "random", direction="maximize")
        experiment.run("/tmp/study", num_trials=20)

    Args:
        base_model: Function or class that takes a dict of choices by label and returns the model;
            or, with the choices of `official_lite.nas`, a function or class without arguments, or a
            Keras model. See `ModelEvaluator`.
        trainer: A `FunctionalTrainer`, a `TaskTrainer`, or any callable that takes the model and
            the trial.
        mutators: The search space: the values that each label may take. None means all choices of
            `official_lite.nas` in the base model.
        strategy: The strategy, in the same form as `search.strategy`.
        **config: Further fields of `SearchConfig`; `direction` is required.
    """

    def __init__(
        self,
        base_model: Any,
        trainer: Callable[[Any, TrialRun], Any],
        mutators: Mapping[str, Any] | None,
        strategy: str | Mapping[str, Any],
        **config: Any,
    ) -> None:
        self._evaluator = ModelEvaluator(base_model, trainer)
        mutators = space_of(base_model) if mutators is None else mutators
        self._config = search_config.SearchConfig(
            {"space": mutators, "strategy": strategy, **config}
        )
        self._study: optuna.Study | None = None

    def run(self, study_dir: str, **config: Any) -> optuna.Study:
        """Run the study to its end, or resume it if it was interrupted.

        Args:
            study_dir: The directory of the study.
            **config: Further fields of `SearchConfig`, such as `num_trials`.

        Returns:
            The study with all its trials.
        """
        self._config.override(config)
        self._study = run_study(self._evaluator, self._config, study_dir)
        return self._study

    def export_top_models(self, top_k: int = 1) -> list[dict[str, Any]]:
        """Return the choices of the `top_k` best trials, best first.

        Raises:
            errors.ConfigValueError: If `run` has not been called.
        """
        if self._study is None:
            raise errors.ConfigValueError("There are no models yet. Call `run` first.")
        space = Space(self._config.space)
        return [space.decode(trial.params) for trial in results.best_trials(self._study)[:top_k]]
