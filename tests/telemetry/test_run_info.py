from official_lite import telemetry


def test_flat_config_has_the_names_of_overrides():
    config = {"task": {"model": {"units": 3}, "losses": ["a", {"b": 1}]}, "seed": None}
    run = telemetry.RunInfo(model_dir="/runs/a", total_steps=10, config=config)
    assert run.flat_config() == {
        "task.model.units": 3,
        "task.losses": '["a", {"b": 1}]',
        "seed": None,
    }


def test_flat_config_has_no_passwords():
    urls = ["mysql://me:secret@host/a"]
    run = telemetry.RunInfo("/run", 1, {"url": urls[0], "urls": urls})
    masked = "mysql://me:***@host/a"
    assert run.flat_config() == {"url": masked, "urls": f'["{masked}"]'}


def test_job_that_only_evaluates_has_files_of_its_own():
    def file(mode):
        return telemetry.RunInfo("/run", 1, {}, mode=mode).file("metrics.json")

    assert file("train_and_eval") == "/run/metrics.json"
    assert file("continuous_eval") == "/run/metrics.continuous_eval.json"
