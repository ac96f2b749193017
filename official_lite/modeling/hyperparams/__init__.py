"""Typed dataclass configs that can be changed safely from YAML, JSON, text and Python.

::

    @dataclasses.dataclass
    class TrainerConfig(hyperparams.Config):
        train_steps: int = 0

    TrainerConfig().override({"train_steps": 1000})

Every value is checked against the annotation of its field. An unknown name is an error that
suggests the nearest ones. This package does not import TensorFlow.
"""

from official_lite.modeling.hyperparams.base_config import (
    Config as Config,
    FreeConfig as FreeConfig,
    Lenient as Lenient,
    OneOfConfig as OneOfConfig,
    PluginConfig as PluginConfig,
    bind as bind,
)
from official_lite.modeling.hyperparams.params_dict import (
    ParamsDict as ParamsDict,
    RestrictionError as RestrictionError,
    diff as diff,
    flatten as flatten,
    get_by_path as get_by_path,
    map_texts as map_texts,
    nested_csv_str_to_json_str as nested_csv_str_to_json_str,
    override_by_path as override_by_path,
    override_params_dict as override_params_dict,
    read_yaml_to_params_dict as read_yaml_to_params_dict,
    save_params_dict_to_yaml as save_params_dict_to_yaml,
    set_by_path as set_by_path,
    texts as texts,
)
from official_lite.modeling.hyperparams.yaml_io import ConfigFileError as ConfigFileError
