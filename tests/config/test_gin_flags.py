import gin
import pytest
from absl import flags as absl_flags

from official_lite.common import errors, flags
from official_lite.config import gin_config


@pytest.fixture
def parsed() -> absl_flags.FlagValues:
    flags.define_flags()
    absl_flags.FLAGS.unparse_flags()
    yield absl_flags.FLAGS
    absl_flags.FLAGS.unparse_flags()
    absl_flags.FLAGS(["test"])
    absl_flags.FLAGS["gin_params"].value = None
    absl_flags.FLAGS["safe_config"].value = False


def test_binding_of_a_trainer_is_known_without_importing_it_by_hand(parsed) -> None:
    parsed(["test", "--gin_params=create_trainer.trainer_cls = @Trainer"])
    gin_config.parse_gin_flags(parsed)
    assert "create_trainer" in gin.config_str()


def test_safe_config_refuses_a_reference(parsed) -> None:
    parsed(["test", "--gin_params=create_trainer.trainer_cls = @Trainer", "--safe_config"])
    with pytest.raises(errors.ConfigValueError, match="--safe_config"):
        gin_config.parse_gin_flags(parsed)


def test_nothing_to_parse_is_nothing_to_do(parsed) -> None:
    parsed(["test"])
    gin_config.parse_gin_flags(parsed)
    assert gin.config_str().strip() == ""
