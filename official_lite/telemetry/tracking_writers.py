"""Writers that log records to experiment trackers: MLflow, and Weights & Biases."""

import itertools
import os
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from absl import logging

from official_lite.common import errors, files, flags
from official_lite.telemetry.writer import Histogram, Record, RunInfo, Writer

# The maximum numbers of metrics and parameters in a request to MLflow.
_METRICS_AT_ONCE = 1000
_PARAMS_AT_ONCE = 100
# The name of the value on the x-axis of W&B charts.
_WANDB_STEP = "global_step"


class MlflowWriter(Writer):
    """Logs to one MLflow run: metrics named `split/name`, images, and histograms as JSON files.

    The run ID is stored in the file `mlflow_run_id` in `model_dir`, so that training that is
    restarted resumes the same MLflow run. If the writer is closed while an exception is
    propagating, the run is marked as failed.

    Args:
        model_dir: Directory that holds the run ID. Its name becomes the name of the run.
        experiment: Name of the MLflow experiment, which is created if it does not exist. Defaults
            to `MLFLOW_EXPERIMENT_NAME`, or else `Default`.
        tracking_uri: Server, database or directory. Defaults to `MLFLOW_TRACKING_URI` or what
            `mlflow.set_tracking_uri` has set. If neither is set, the database `mlflow.db` and the
            directory `mlartifacts` in a local `model_dir` hold the run, in the experiment `runs`.
        params: Parameters of the run.
        sets_status: Whether this job determines the status and the parameters of the run. If not,
            it only adds to the run of another job, which may still be running. If there is no run
            yet, it creates one with `params` that counts as finished.

    Raises:
        errors.ConfigValueError: MLflow is not installed, `tracking_uri` can't be opened, or it does
            not contain the run that is named in `model_dir`.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str],
        *,
        experiment: str | None = None,
        tracking_uri: str | None = None,
        params: Mapping[str, Any] | None = None,
        sets_status: bool = True,
    ) -> None:
        directory = os.fspath(model_dir)
        own_store = _own_store(directory) if tracking_uri is None else None
        if own_store is not None:
            # Store the run in the model directory. By default, MLflow would create `mlflow.db` and
            # `mlruns` in the working directory.
            files.makedirs(directory)
        self._client = _open_client(own_store or tracking_uri)
        self._sets_status = sets_status
        path = os.path.join(directory, "mlflow_run_id")
        is_new = not files.exists(path)
        if is_new:
            self._run_id = self._create(directory, experiment, own_store is not None)
            files.makedirs(directory)
            try:
                files.create_text(path, self._run_id)
            except FileExistsError:
                # Another job of the run has started at the same time.
                self._client.delete_run(self._run_id)
                is_new = False
        if not is_new:
            self._run_id = self._resume(files.read_text(path).strip(), path)
        if is_new or sets_status:
            self._log_params(params or {})
        self._is_open = True

    def write(self, record: Record) -> None:
        from mlflow import entities

        self._is_open = True
        now = int(time.time() * 1000)
        metrics = [
            entities.Metric(_clean(f"{record.split}/{name}"), float(value), now, record.step)
            for name, value in record.flat().items()
        ]
        for some in _batches(metrics, _METRICS_AT_ONCE):
            self._client.log_batch(self._run_id, metrics=some)
        for name, image in record.images.items():
            key = _clean(f"{record.split}/{name}")
            self._client.log_image(self._run_id, image, key=key, step=record.step)
        for name, histogram in record.histograms.items():
            path = f"histograms/{_clean(f'{record.split}/{name}')}/{record.step:09d}.json"
            lists = {"edges": histogram.edges.tolist(), "counts": histogram.counts.tolist()}
            self._client.log_dict(self._run_id, lists, path)

    def close(self) -> None:
        if self._is_open and self._sets_status:
            status = "FINISHED" if sys.exception() is None else "FAILED"
            self._client.set_terminated(self._run_id, status)
        self._is_open = False

    def _create(self, model_dir: str, experiment: str | None, is_own_store: bool) -> str:
        # MLflow itself creates the experiment `Default`, which stores its files in the working
        # directory. A store in `model_dir` therefore uses an experiment with another name.
        default = "runs" if is_own_store else "Default"
        name = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or default
        location = os.path.abspath(os.path.join(model_dir, "mlartifacts")) if is_own_store else None
        experiment_id = self._find_or_create_experiment(name, location)
        run_name = os.path.basename(os.path.abspath(model_dir))
        run_id = str(self._client.create_run(experiment_id, run_name=run_name).info.run_id)
        if not self._sets_status:
            self._client.set_terminated(run_id, "FINISHED")
        return run_id

    def _find_or_create_experiment(self, name: str, location: str | None) -> str:
        from mlflow import exceptions

        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name, artifact_location=location))
            except exceptions.MlflowException:
                # Another job may have created the experiment at the same time.
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        return str(found.experiment_id)

    def _resume(self, run_id: str, path: str) -> str:
        from mlflow import exceptions

        try:
            if self._sets_status:
                self._client.update_run(run_id, status="RUNNING")
            elif self._client.get_run(run_id).info.lifecycle_stage != "active":
                raise exceptions.MlflowException("The run has been deleted")
        except exceptions.MlflowException as error:
            raise errors.ConfigValueError(
                f"{path} names the MLflow run {run_id}, which can't be resumed: {error}. Set "
                "`tracking_uri` to the value with which the run was started, or remove the file to "
                "start a new run."
            ) from error
        return run_id

    def _log_params(self, params: Mapping[str, Any]) -> None:
        from mlflow import entities

        logged = self._client.get_run(self._run_id).data.params
        texts = {_clean(name): str(value) for name, value in params.items()}
        changed = sorted(name for name in texts if logged.get(name, texts[name]) != texts[name])
        if changed:
            logging.warning(
                "MLflow can't change logged parameters, so the run keeps the first values of: %s.",
                ", ".join(changed),
            )
        new = [entities.Param(name, text) for name, text in texts.items() if name not in logged]
        for some in _batches(new, _PARAMS_AT_ONCE):
            self._client.log_batch(self._run_id, params=some)


def mlflow_of(
    run: RunInfo, experiment: str | None = None, tracking_uri: str | None = None
) -> Writer:
    """Build an `MlflowWriter` for the run.

    Jobs that do not train add their results to the MLflow run of the training.
    """
    return MlflowWriter(
        run.model_dir,
        experiment=experiment,
        tracking_uri=tracking_uri,
        params=run.flat_config(),
        sets_status=flags.Mode(run.mode).trains,
    )


def _own_store(model_dir: str) -> str | None:
    """Return the URI of a database in `model_dir`.

    Returns:
        None if the user has set a tracking URI, `model_dir` is remote, or MLflow is not installed.
    """
    try:
        from mlflow import tracking
    except ModuleNotFoundError:
        return None  # `_open_client` raises the error about the missing library.
    is_set: Callable[[], bool] = tracking.is_tracking_uri_set
    if is_set() or files.is_remote(model_dir):
        return None
    return "sqlite:///" + os.path.join(os.path.abspath(model_dir), "mlflow.db")


def _open_client(tracking_uri: str | None) -> Any:
    # MLflow is optional and slow to import.
    try:
        import mlflow
    except ModuleNotFoundError as error:
        raise errors.ConfigValueError(
            "The writer `mlflow` requires MLflow, which is not installed. Run "
            "`pip install 'official-lite[mlflow]'`."
        ) from error
    try:
        return mlflow.MlflowClient(tracking_uri)
    except mlflow.exceptions.MlflowException as error:
        raise errors.ConfigValueError(
            f"MLflow can't open {tracking_uri or mlflow.get_tracking_uri()}: {error} Set "
            "`tracking_uri` or MLFLOW_TRACKING_URI to the address of a server. A local database "
            "requires `pip install 'official-lite[mlflow]'`; a directory requires "
            "MLFLOW_ALLOW_FILE_STORE=true."
        ) from error


def _batches(items: Iterable[Any], size: int) -> Iterable[list[Any]]:
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


def _clean(name: str) -> str:
    """Return `name` without characters and path components that MLflow names can't contain."""
    parts = re.sub(r"[^\w\-./ :]", "_", name).split("/")
    return "/".join(part for part in parts if part not in ("", ".", ".."))


class WandbWriter(Writer):
    """Logs to one Weights & Biases run: values, images and histograms named `split/name`.

    The run ID is stored in the file `wandb_run_id` in `model_dir`, so that training that is
    restarted resumes the same W&B run. Curves use `global_step` as their x-axis: W&B's own step
    can't decrease, but the training step does when an earlier checkpoint is restored. If the writer
    is closed while an exception is propagating, the run is marked as failed.

    Args:
        model_dir: Directory that holds the run ID and, if it is local, W&B's files. Its name
            becomes the name of the run.
        project: The W&B project. Defaults to `WANDB_PROJECT`, or else W&B's own default.
        mode: `online`, `offline` (upload later with `wandb sync`) or `disabled`. Defaults to
            `WANDB_MODE`, or else `online` if `WANDB_API_KEY` is set and `offline` if not.
        config: The config of the run.
        job: Name of a job that does not train and has a W&B run of its own. It becomes part of the
            names of the run and of the file with its ID.

    Raises:
        errors.ConfigValueError: W&B is not installed.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str],
        *,
        project: str | None = None,
        mode: str | None = None,
        config: Mapping[str, Any] | None = None,
        job: str = "",
    ) -> None:
        self._wandb = _import_wandb()
        self._model_dir = os.fspath(model_dir)
        self._project = project
        self._mode = mode or _default_mode()
        self._config = dict(config or {})
        self._suffix = f".{job}" if job else ""
        self._run: Any = self._start()

    def write(self, record: Record) -> None:
        self._run = self._run or self._start()
        values = {
            **record.flat(),
            **{name: self._wandb.Image(image) for name, image in record.images.items()},
            **{name: self._to_histogram(found) for name, found in record.histograms.items()},
        }
        named = {f"{record.split}/{name}": value for name, value in values.items()}
        self._run.log({**named, _WANDB_STEP: record.step})

    def close(self) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if sys.exception() is None else 1)
            self._run = None

    def _start(self) -> Any:
        run = self._wandb.init(
            id=_read_or_create_id(self._model_dir, f"wandb_run_id{self._suffix}"),
            name=os.path.basename(os.path.abspath(self._model_dir)) + self._suffix,
            project=self._project,
            mode=self._mode,
            config=self._config,
            allow_val_change=True,
            dir=None if files.is_remote(self._model_dir) else self._model_dir,
            resume="allow",
            reinit="create_new",
        )
        run.define_metric(_WANDB_STEP)
        run.define_metric("*", step_metric=_WANDB_STEP)
        return run

    def _to_histogram(self, found: Histogram) -> Any:
        return self._wandb.Histogram(np_histogram=(np.asarray(found.counts), found.edges))


def wandb_of(run: RunInfo, project: str | None = None, mode: str | None = None) -> Writer:
    """Build a `WandbWriter` for the run.

    Each job that does not train has a W&B run of its own, because it may run beside the training,
    which W&B does not support in one run.
    """
    return WandbWriter(
        run.model_dir,
        project=project,
        mode=mode,
        config=run.flat_config(),
        job="" if flags.Mode(run.mode).trains else run.mode,
    )


def _import_wandb() -> Any:
    # W&B is optional and slow to import.
    try:
        import wandb
    except ModuleNotFoundError as error:
        raise errors.ConfigValueError(
            "The writer `wandb` requires the package `wandb`, which is not installed. Run "
            "`pip install 'official-lite[wandb]'`."
        ) from error
    return wandb


def _default_mode() -> str:
    if mode := os.environ.get("WANDB_MODE"):
        return mode
    if "WANDB_API_KEY" in os.environ:
        return "online"
    logging.info(
        "W&B runs offline, because neither WANDB_MODE nor WANDB_API_KEY is set. Upload the run "
        "with `wandb sync`."
    )
    return "offline"


def _read_or_create_id(model_dir: str, name: str) -> str:
    path = os.path.join(model_dir, name)
    if files.exists(path):
        return files.read_text(path).strip()
    run_id = uuid.uuid4().hex
    files.makedirs(model_dir)
    files.write_text(path, run_id)
    return run_id
