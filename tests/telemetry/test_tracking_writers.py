"""Writers for the experiment trackers MLflow and Weights & Biases."""

import sys
from unittest import mock

import mlflow
import numpy as np
import pytest
import wandb

from official_lite import telemetry
from official_lite.common import errors
from official_lite.telemetry import tracking_writers


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")


@pytest.fixture
def uri(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return (tmp_path / "mlruns").as_uri()


@pytest.fixture
def model_dir(tmp_path):
    return tmp_path / "my_run"


def record(step, split="train", **fields):
    return telemetry.Record(step=step, split=split, **{"values": {"loss": 0.5}, **fields})


def found_run(uri, model_dir):
    return mlflow.MlflowClient(uri).get_run((model_dir / "mlflow_run_id").read_text())


def test_mlflow_metrics_are_logged_with_their_split_and_step(uri, model_dir):
    with telemetry.MlflowWriter(model_dir, experiment="e", tracking_uri=uri) as writer:
        writer.write(record(3))
        writer.write(record(4, "validation", values={"clean": {"auc[0]": 0.25}}))
    run = found_run(uri, model_dir)
    assert run.data.metrics == {"train/loss": 0.5, "validation/clean/auc_0_": 0.25}
    assert (run.info.run_name, run.info.status) == ("my_run", "FINISHED")
    [metric] = mlflow.MlflowClient(uri).get_metric_history(run.info.run_id, "train/loss")
    assert metric.step == 3


def test_restarted_training_resumes_its_mlflow_run(uri, model_dir):
    for step, params in [(1, {"a": 1, "b": 2}), (2, {"a": 1, "b": 3, "c": 4})]:
        with telemetry.MlflowWriter(model_dir, tracking_uri=uri, params=params) as writer:
            writer.write(record(step))
            assert found_run(uri, model_dir).info.status == "RUNNING"
    run = found_run(uri, model_dir)
    # MLflow does not allow a logged parameter to change.
    assert run.data.params == {"a": "1", "b": "2", "c": "4"}
    history = mlflow.MlflowClient(uri).get_metric_history(run.info.run_id, "train/loss")
    assert [metric.step for metric in history] == [1, 2]


def test_jobs_that_start_at_the_same_time_share_one_mlflow_run(uri, model_dir, monkeypatch):
    find = mlflow.MlflowClient.get_experiment_by_name

    def find_before_the_evaluation_starts(client, name):
        found = find(client, name)
        monkeypatch.setattr(mlflow.MlflowClient, "get_experiment_by_name", find)
        evaluation = {"experiment": "e", "tracking_uri": uri, "sets_status": False}
        with telemetry.MlflowWriter(model_dir, **evaluation) as writer:
            writer.write(record(1, "validation"))
        return found

    monkeypatch.setattr(
        mlflow.MlflowClient, "get_experiment_by_name", find_before_the_evaluation_starts
    )
    with telemetry.MlflowWriter(model_dir, experiment="e", tracking_uri=uri) as writer:
        writer.write(record(1))
    run = found_run(uri, model_dir)
    assert sorted(run.data.metrics) == ["train/loss", "validation/loss"]
    active = mlflow.MlflowClient(uri).search_runs([run.info.experiment_id])
    assert [each.info.run_id for each in active] == [run.info.run_id]


def test_images_and_histograms_are_logged_as_mlflow_artifacts(uri, model_dir):
    histogram = telemetry.Histogram(edges=np.array([0.0, 1.0]), counts=np.array([2.0]))
    image = np.zeros([4, 4, 3], np.uint8)
    with telemetry.MlflowWriter(model_dir, tracking_uri=uri) as writer:
        writer.write(record(3, images={"i": image}, histograms={"h": histogram}))
    client, run_id = mlflow.MlflowClient(uri), found_run(uri, model_dir).info.run_id
    assert any(file.path.endswith(".png") for file in client.list_artifacts(run_id, "images"))
    [file] = client.list_artifacts(run_id, "histograms/train/h")
    assert file.path == "histograms/train/h/000000003.json"


def test_values_beyond_the_batch_limit_of_mlflow_are_all_logged(uri, model_dir):
    many = {f"m{i}": i for i in range(1001)}
    with telemetry.MlflowWriter(model_dir, tracking_uri=uri, params=dict(list(many.items())[:101])):
        pass
    with telemetry.MlflowWriter(model_dir, tracking_uri=uri) as writer:
        writer.write(record(1, values=many))
    run = found_run(uri, model_dir)
    assert (len(run.data.metrics), len(run.data.params)) == (1001, 101)


def test_failed_training_marks_its_mlflow_run_as_failed(uri, model_dir):
    with (
        pytest.raises(ZeroDivisionError),
        telemetry.MultiWriter(
            [telemetry.AsyncWriter(telemetry.MlflowWriter(model_dir, tracking_uri=uri))]
        ),
    ):
        raise ZeroDivisionError
    assert found_run(uri, model_dir).info.status == "FAILED"


# MLflow's own queries trigger this warning.
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")
def test_mlflow_store_is_inside_the_model_dir_by_default(model_dir, tmp_path, monkeypatch):
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    for step in (1, 2):
        with telemetry.MlflowWriter(model_dir) as writer:
            histogram = telemetry.Histogram(edges=np.array([0.0, 1.0]), counts=np.array([2.0]))
            writer.write(record(step, histograms={"h": histogram}))
    assert {path.name for path in tmp_path.iterdir()} == {model_dir.name}
    assert {"mlflow.db", "mlartifacts"} <= {path.name for path in model_dir.iterdir()}
    run = found_run(f"sqlite:///{model_dir}/mlflow.db", model_dir)
    assert run.data.metrics == {"train/loss": 0.5}


def _write_run_id(model_dir):
    model_dir.mkdir()
    (model_dir / "mlflow_run_id").write_text("0123456789abcdef0123456789abcdef")


@pytest.mark.parametrize(
    ("prepare", "named"),
    [
        (lambda d, m: _write_run_id(d), "mlflow_run_id names the MLflow run 0123"),
        (lambda d, m: m.setenv("MLFLOW_TRACKING_URI", "nowhere://x"), "nowhere://x"),
        (lambda d, m: m.setitem(sys.modules, "mlflow", None), r"official-lite\[mlflow\]"),
    ],
    ids=["run is missing", "store can't be opened", "not installed"],
)
def test_mlflow_writer_that_cannot_log_raises_when_created(
    uri, model_dir, monkeypatch, prepare, named
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    prepare(model_dir, monkeypatch)
    with pytest.raises(errors.ConfigValueError, match=named):
        telemetry.MlflowWriter(model_dir)


def test_error_for_missing_wandb_names_the_extra_to_install(model_dir, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(errors.ConfigValueError, match=r"official-lite\[wandb\]"):
        telemetry.WandbWriter(model_dir)


def transaction_logs(model_dir):
    """Return the files that `wandb sync` uploads."""
    # A separate W&B process writes the files, and may lag behind until it has ended.
    wandb.teardown()
    return sorted(model_dir.glob("wandb/offline-run-*/*.wandb"))


@pytest.mark.slow
def test_wandb_is_offline_without_an_api_key(model_dir):
    config = {"task.units": 77}
    with telemetry.WandbWriter(model_dir, project="p", config=config) as writer:
        writer.write(record(3, values={"clean": {"loss": 0.625}}))
    [path] = transaction_logs(model_dir)
    content = path.read_bytes()
    for part in (b"train/clean/loss", b"0.625", b"global_step", b"task.units", b"77", b"my_run"):
        assert part in content


def test_restarted_training_resumes_its_wandb_run(model_dir):
    for step in (1, 2):
        with telemetry.WandbWriter(model_dir, config={"steps": step}) as writer:
            writer.write(record(step))
    run_id = (model_dir / "wandb_run_id").read_text()
    paths = transaction_logs(model_dir)
    assert {path.name for path in paths} == {f"run-{run_id}.wandb"}


def test_jobs_that_do_not_train_have_a_wandb_run_of_their_own(model_dir, monkeypatch):
    init = mock.MagicMock()
    monkeypatch.setattr(wandb, "init", init)
    for mode in ("train", "continuous_eval", "test"):
        tracking_writers.wandb_of(telemetry.RunInfo(str(model_dir), 9, {}, mode=mode)).close()
    training, evaluation, test = (call.kwargs for call in init.call_args_list)
    assert (training["name"], evaluation["name"]) == ("my_run", "my_run.continuous_eval")
    assert test["name"] == "my_run.test"
    assert len({evaluation["id"], test["id"], training["id"]}) == 3


def test_images_and_histograms_are_logged_to_wandb(model_dir):
    edges = np.linspace(-1, 1, 506)
    histogram = telemetry.Histogram(edges=edges, counts=np.ones(505))
    image = np.zeros([4, 4, 3], np.uint8)
    with telemetry.WandbWriter(model_dir, mode="offline") as writer:
        writer.write(record(3, images={"i": image}, histograms={"h": histogram}))
    [path] = transaction_logs(model_dir)
    assert b"train/h" in path.read_bytes()
    assert list(path.parent.glob("files/media/images/train/i_*.png"))


def test_wandb_mode_is_read_from_the_environment(model_dir, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    with telemetry.WandbWriter(model_dir) as writer:
        writer.write(record(1))
    assert transaction_logs(model_dir) == []
