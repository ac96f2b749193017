import sys

import mlflow
import numpy as np
import pytest

from official_lite import telemetry
from official_lite.common import errors


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


def test_values_come_with_split_and_step(uri, model_dir):
    with telemetry.MlflowWriter(model_dir, experiment="e", tracking_uri=uri) as writer:
        writer.write(record(3))
        writer.write(record(4, "validation", values={"clean": {"auc[0]": 0.25}}))
    run = found_run(uri, model_dir)
    assert run.data.metrics == {"train/loss": 0.5, "validation/clean/auc_0_": 0.25}
    assert (run.info.run_name, run.info.status) == ("my_run", "FINISHED")
    [metric] = mlflow.MlflowClient(uri).get_metric_history(run.info.run_id, "train/loss")
    assert metric.step == 3


def test_restart_goes_on_in_the_same_run(uri, model_dir):
    for step, params in [(1, {"a": 1, "b": 2}), (2, {"a": 1, "b": 3, "c": 4})]:
        with telemetry.MlflowWriter(model_dir, tracking_uri=uri, params=params) as writer:
            writer.write(record(step))
            assert found_run(uri, model_dir).info.status == "RUNNING"
    run = found_run(uri, model_dir)
    # MLflow does not let a parameter change.
    assert run.data.params == {"a": "1", "b": "2", "c": "4"}
    history = mlflow.MlflowClient(uri).get_metric_history(run.info.run_id, "train/loss")
    assert [metric.step for metric in history] == [1, 2]


def test_images_and_histograms_are_artifacts(uri, model_dir):
    histogram = telemetry.Histogram(edges=np.array([0.0, 1.0]), counts=np.array([2.0]))
    image = np.zeros([4, 4, 3], np.uint8)
    with telemetry.MlflowWriter(model_dir, tracking_uri=uri) as writer:
        writer.write(record(3, images={"i": image}, histograms={"h": histogram}))
    client, run_id = mlflow.MlflowClient(uri), found_run(uri, model_dir).info.run_id
    assert any(file.path.endswith(".png") for file in client.list_artifacts(run_id, "images"))
    [file] = client.list_artifacts(run_id, "histograms/train/h")
    assert file.path == "histograms/train/h/000000003.json"


def test_more_than_mlflow_takes_at_once(uri, model_dir):
    many = {f"m{i}": i for i in range(1001)}
    with telemetry.MlflowWriter(model_dir, tracking_uri=uri, params=dict(list(many.items())[:101])):
        pass
    with telemetry.MlflowWriter(model_dir, tracking_uri=uri) as writer:
        writer.write(record(1, values=many))
    run = found_run(uri, model_dir)
    assert (len(run.data.metrics), len(run.data.params)) == (1001, 101)


def test_error_on_its_way_marks_the_run_as_failed(uri, model_dir):
    with (
        pytest.raises(ZeroDivisionError),
        telemetry.MultiWriter(
            [telemetry.AsyncWriter(telemetry.MlflowWriter(model_dir, tracking_uri=uri))]
        ),
    ):
        raise ZeroDivisionError
    assert found_run(uri, model_dir).info.status == "FAILED"


def test_run_that_is_not_there_is_named(uri, model_dir):
    model_dir.mkdir()
    (model_dir / "mlflow_run_id").write_text("0123456789abcdef0123456789abcdef")
    with pytest.raises(errors.ConfigValueError, match=r"mlflow_run_id names the run 0123"):
        telemetry.MlflowWriter(model_dir, tracking_uri=uri)


# MLflow's own queries cause it.
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")
def test_default_store_is_inside_the_model_dir(model_dir, tmp_path, monkeypatch):
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


def test_store_that_can_not_be_opened_is_explained(model_dir):
    with pytest.raises(errors.ConfigValueError, match="MLflow can't open nowhere://x"):
        telemetry.MlflowWriter(model_dir, tracking_uri="nowhere://x")


def test_missing_package_is_named_with_its_extra(model_dir, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(errors.ConfigValueError, match=r"pip install official-lite\[mlflow\]"):
        telemetry.MlflowWriter(model_dir)
