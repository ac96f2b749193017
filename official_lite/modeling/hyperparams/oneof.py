"""The path of the Model Garden for `OneOfConfig`."""

from official_lite.modeling.hyperparams.base_config import OneOfConfig as OneOfConfig
