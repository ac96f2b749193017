from official_lite import telemetry


def test_flat_config_has_the_names_of_overrides():
    config = {"task": {"model": {"units": 3}, "losses": ["a", {"b": 1}]}, "seed": None}
    run = telemetry.RunInfo(model_dir="/runs/a", total_steps=10, config=config)
    assert run.flat_config() == {
        "task.model.units": 3,
        "task.losses": '["a", {"b": 1}]',
        "seed": None,
    }
