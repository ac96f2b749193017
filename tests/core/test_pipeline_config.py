import pytest

from official_lite.common import errors
from official_lite.core import config_definitions as cfg


@pytest.mark.parametrize("suffix", ["", "_class_path"])
def test_stages_have_the_names_of_paddlerec_too(suffix: str) -> None:
    names = ["instance", "network", "startup", "runner", "terminal"]
    config = cfg.PipelineConfig({name + suffix: name for name in names})
    fields = ["prepare", "build", "initialize", "run", "finalize"]
    assert config.as_dict() == dict(zip(fields, names, strict=True))


def test_runner_block_of_paddlerec_is_refused_with_its_counterparts() -> None:
    runner = [{"name": "train_runner", "class": "train", "epochs": 2}]
    with pytest.raises(errors.UnknownKeyError, match=r"`pipeline`.*`phases`.*docs/stages\.md"):
        cfg.ExperimentConfig().override({"runner": runner})
    with pytest.raises(errors.UnknownKeyError, match="`trainer`"):
        cfg.ExperimentConfig().override({"trainr": {}})
