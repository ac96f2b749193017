"""Unusual config files; see `test_refusals.py` for those that are refused with a suggestion.

The faults are listed in docs/reliability.md.
"""

import pathlib
import subprocess
import sys
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies

import registry_imports  # noqa: F401  (imported for its registrations)
from official_lite.common import errors
from official_lite.config import gin_config, parsing
from official_lite.core import config_definitions as cfg
from official_lite.core import exp_factory
from official_lite.modeling import hyperparams, optimization

ROOT = pathlib.Path(__file__).parents[2]
DIGITS = "vision/digits_cnn"


def _parse(tmp_path: pathlib.Path, text: str = "", **options: Any) -> cfg.ExperimentConfig:
    """Return the config of the digits experiment with the overrides of a config file."""
    file = tmp_path / "my.yaml"
    file.write_text(text)
    flags = parsing.ParseConfigOptions(
        experiment=options.pop("experiment", DIGITS), config_file=[str(file)], **options
    )
    params: cfg.ExperimentConfig = parsing.parse_configuration(flags, print_return=False)
    return params


def test_yaml_number_with_an_exponent_is_parsed_as_a_float(tmp_path: pathlib.Path) -> None:
    assert _parse(tmp_path, "trainer: {loss_upper_bound: 1e-3}").trainer.loss_upper_bound == 1e-3


def test_overrides_merge_mappings_and_replace_whole_lists_or_single_elements(
    tmp_path: pathlib.Path,
) -> None:
    params = _parse(tmp_path, "task: {model: {filters: [8, 16, 32]}}\n", set=["trainer.freeze=[a]"])
    assert params.task.model.filters == (8, 16, 32)
    assert params.task.model.units == (128,)
    indexed = _parse(tmp_path, params_override="task.model.filters[1]=5")
    assert indexed.task.model.filters == (32, 5)


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing but this\n"])
def test_config_file_without_values_leaves_the_config_unchanged(
    tmp_path: pathlib.Path, text: str
) -> None:
    assert _parse(tmp_path, text) == _parse(tmp_path, "{}")


_READ_ALL = """
import pathlib, re, sys, time
from official_lite.common import errors
from official_lite.modeling.hyperparams import yaml_io

for file in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    started = time.monotonic()
    try:
        yaml_io.read_yaml(file)
    except errors.ConfigError as error:
        print(f"{error}".replace("\\n", " "))
    else:
        print("was read:", file)
    assert time.monotonic() - started < 60, file
# Not `ru_maxrss`, which includes the memory of the process that started this one.
status = pathlib.Path("/proc/self/status").read_text()
print(re.search(r"VmHWM:\\s*(\\d+) kB", status)[1])
"""


def test_malformed_or_oversized_yaml_files_are_refused_without_using_much_memory(
    tmp_path: pathlib.Path,
) -> None:
    aliases = "\n".join(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]" for i in range(9))
    text = "trainer: {train_steps: 1}\n"
    bombs = {
        "anchors.yaml": f"a0: &a0 [1]\n{aliases}\n".encode(),
        "bom.yaml": b"\xef\xbb\xbf" + text.encode(),
        "depth.yaml": b"a: " + b"[" * 10_000 + b"]" * 10_000,
        "latin.yaml": "name: größe\n".encode("latin-1"),
        "tabs.yaml": b"trainer:\n\ttrain_steps: 1\n",
        "twice.yaml": b"a: 1\na: 2\n",
        "utf16.yaml": text.encode("utf-16"),
    }
    for name, content in bombs.items():
        (tmp_path / name).write_bytes(content)
    with (tmp_path / "huge.yaml").open("wb") as file:
        file.truncate(1 << 30)
    command = [sys.executable, "-c", _READ_ALL, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    *answers, kilobytes = result.stdout.splitlines()
    files = sorted([*bombs, "huge.yaml"])
    assert [name in answer for name, answer in zip(files, answers, strict=True)] == [True] * 8
    assert "was read" not in result.stdout
    assert int(kilobytes) < 200_000


def test_zero_train_steps_and_a_zero_batch_size_are_accepted_by_the_config_parser(
    tmp_path: pathlib.Path,
) -> None:
    params = _parse(tmp_path, set=["trainer.train_steps=0", "task.train_data.global_batch_size=0"])
    assert params.trainer.train_steps == 0


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "name", [name for name in exp_factory.list_experiments() if name.startswith("vision/")]
)
@hypothesis.given(
    steps=strategies.integers(0, 2**62),
    rate=strategies.floats(0, 1e6, allow_subnormal=False),
    text=strategies.text(strategies.characters(codec="utf-8"), max_size=20),
)
@hypothesis.settings(max_examples=10)
def test_config_round_trips_through_overrides_and_gin(
    name: str, steps: int, rate: float, text: str
) -> None:
    params = exp_factory.get_exp_config(name)
    params.override({"trainer": {"train_steps": steps, "loss_upper_bound": rate}})
    params.override({"task": {"init_checkpoint": text}})
    again = exp_factory.get_exp_config(name)
    hyperparams.override_params_dict(again, params.as_dict(), is_strict=True)
    yaml = parsing.to_yaml(params)
    assert again == params
    assert parsing.to_yaml(again) == yaml
    gin_config.parse_gin([], [gin_config.operative_config(params)])
    assert gin_config.apply_bindings(exp_factory.get_exp_config(name)) == params


def test_all_missing_flags_and_fields_are_reported_together() -> None:
    command = [sys.executable, str(ROOT / "train.py")]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert result.returncode == 2
    for flag in ("--experiment", "--mode", "--model_dir"):
        assert result.stderr.count(f"The required flag {flag} is missing: ") == 1
    with pytest.raises(errors.ConfigError, match=r"`optimizer.type`.*`learning_rate.type`"):
        optimization.OptimizerFactory(cfg.OptimizationConfig())
    stepwise = {"optimizer": {"type": "sgd"}, "learning_rate": {"type": "stepwise"}}
    factory = optimization.OptimizerFactory(cfg.OptimizationConfig(stepwise))
    with pytest.raises(errors.ConfigError, match=r"stepwise.boundaries` and .*stepwise.values`"):
        factory.build_learning_rate()
