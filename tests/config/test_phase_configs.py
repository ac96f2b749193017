import pytest

from official_lite.common import errors
from official_lite.config import phase_configs
from official_lite.core import config_definitions as cfg


def _params(*phases: dict[str, object]) -> cfg.ExperimentConfig:
    params = cfg.ExperimentConfig()
    params.override({"phases": list(phases)})
    return params


def test_config_of_a_phase_is_the_experiment_config_with_the_overrides_of_that_phase() -> None:
    overrides = {"trainer.train_steps": 7, "runtime": {"seed": 3}}
    params = _params({"name": "a"}, {"name": "b", "overrides": overrides})
    first, second = (phase_configs.resolve(params, i) for i in range(2))
    assert (first.trainer.train_steps, first.runtime.seed) == (0, 0)
    assert (second.trainer.train_steps, second.runtime.seed) == (7, 3)
    assert first.phases == second.phases == []
    assert params.trainer.train_steps == 0
    assert phase_configs.directory(params, 1, "/run") == "/run/b"


def test_order_of_phase_overrides_does_not_change_the_config() -> None:
    block = "trainer.optimizer_config.optimizer"
    overrides = {f"{block}.sgd.momentum": 0.5, f"{block}.type": "sgd"}
    overrides["trainer"] = {"train_steps": 7, "optimizer_config": {"warmup": {"type": "linear"}}}
    for one in (overrides, dict(reversed(overrides.items()))):
        trainer = phase_configs.resolve(_params({"name": "a", "overrides": one}), 0).trainer
        assert trainer.optimizer_config.optimizer.get().momentum == 0.5
        assert (trainer.train_steps, trainer.optimizer_config.warmup.type) == (7, "linear")


@pytest.mark.parametrize(
    ("init_from", "path"),
    [
        ("previous", "/run/b"),
        ("previous/best_ckpt", "/run/b/best_ckpt"),
        ("a", "/run/a"),
        ("a/best_ckpt", "/run/a/best_ckpt"),
        ("/other/run", "/other/run"),
        ("", ""),
    ],
)
def test_init_from_takes_weights_from_an_earlier_phase_or_a_path(init_from: str, path: str) -> None:
    params = _params({"name": "a"}, {"name": "b"}, {"name": "c", "init_from": init_from})
    params.validate()
    assert phase_configs.resolve(params, 2, "/run").task.init_checkpoint == path


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        ([{"name": "a"}, {"name": "a"}], "'a'"),
        ([{"name": "a/b"}], "'a/b'"),
        ([{"name": ".."}], r"'\.\.'"),
        ([{"name": "best_ckpt"}], "'best_ckpt'"),
        ([{"name": "a", "mode": "trian"}], "`train`"),
        ([{"name": "a", "init_from": "previous"}], "'previous'"),
        ([{"name": "a", "init_from": "b"}, {"name": "b"}], "'b'"),
        ([{"name": "pretrain"}, {"name": "b", "init_from": "pretrian"}], "`pretrain`"),
        ([{"name": "a", "mode": "eval"}, {"name": "b", "init_from": "a"}], "leaves no checkpoint"),
        (
            [{"name": "a", "mode": "predict"}, {"name": "b", "init_from": "a"}],
            "leaves no checkpoint",
        ),
    ],
)
def test_error_for_an_invalid_phase_contains_the_invalid_name_or_the_reason(
    phases: list[dict[str, object]], message: str
) -> None:
    with pytest.raises(errors.ConfigValueError, match=message):
        _params(*phases).validate()


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        ({"trainer.trian_steps": 1}, errors.UnknownKeyError, "'b'.*Did you mean `train_steps`"),
        ({"trainer": {"train_steps": "x"}}, errors.ConfigTypeError, "'b'.*expected int"),
        ({"trainer.train_steps": -1}, errors.ConfigValueError, "'b'.*-1"),
        ({"phases": []}, errors.ConfigValueError, "can't contain `phases`"),
    ],
)
def test_error_for_an_invalid_phase_override_names_the_phase(overrides, error, message) -> None:
    with pytest.raises(error, match=message):
        phase_configs.check(_params({"name": "a"}, {"name": "b", "overrides": overrides}))


def test_error_in_a_phase_names_the_phase_unless_its_name_is_empty() -> None:
    for name, message in (("second", "^In the phase 'second': why$"), ("", "^why$")):
        with pytest.raises(errors.DataError, match=message), phase_configs.in_phase(name):
            raise errors.DataError("why")


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/run/a", True), ("/run/a/", True), ("/run/a/best_ckpt", True), ("/run/ab", False)],
)
def test_path_lies_in_a_directory_only_if_it_is_that_directory_or_inside_it(
    path: str, expected: bool
) -> None:
    assert phase_configs.lies_in(path, "/run/a") is expected


def test_override_for_all_phases_takes_precedence_over_the_overrides_of_each_phase() -> None:
    overrides = {"trainer.train_steps": 7, "trainer": {"train_steps": 9, "max_to_keep": 2}}
    params = _params({"name": "a", "overrides": overrides})
    phase_configs.override_all(params, lambda _: {"trainer.train_steps": 1})
    assert params.trainer.train_steps == 1
    resolved = phase_configs.resolve(params, 0)
    assert (resolved.trainer.train_steps, resolved.trainer.max_to_keep) == (1, 2)
