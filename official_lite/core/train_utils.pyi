from official_lite.checkpoint.best_checkpoints import BEST_CHECKPOINT_NAME as BEST_CHECKPOINT_NAME
from official_lite.checkpoint.inspection import (
    read_global_step_from_checkpoint as read_global_step_from_checkpoint,
    remove_ckpts as remove_ckpts,
)
from official_lite.common.nested_dict import (
    cast_leaf_nested_dict as cast_leaf_nested_dict,
    get_leaf_nested_dict as get_leaf_nested_dict,
)
from official_lite.config.gin_config import parse_gin_flags as parse_gin_flags
from official_lite.config.parsing import (
    ExperimentParser as ExperimentParser,
    ParseConfigOptions as ParseConfigOptions,
    import_modules as import_modules,
    parse_configuration as parse_configuration,
    serialize_config as serialize_config,
    to_yaml as to_yaml,
)
from official_lite.core.trainer_factory import (
    create_optimizer as create_optimizer,
    create_trainer as create_trainer,
)
from official_lite.execution.execution_record import describe_execution as describe_execution
from official_lite.modeling.model_summary import (
    try_count_flops as try_count_flops,
    try_count_params as try_count_params,
    write_model_params as write_model_params,
)
from official_lite.core.best_checkpoint import (
    BestCheckpointExporter as BestCheckpointExporter,
    maybe_create_best_ckpt_exporter as maybe_create_best_ckpt_exporter,
)
from official_lite.core.continuous_finetune_lib import (
    write_json_summary as write_json_summary,
    write_summary as write_summary,
)
from official_lite.run.run_record import (
    check_model_dir as check_model_dir,
    is_finished as is_finished,
    save_gin_config as save_gin_config,
)
