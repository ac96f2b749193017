"""Building blocks for custom trainers and training loops."""

from official_lite.orbit.utils.common import (
    as_tf_variable as as_tf_variable,
    bind_dataset_fn as bind_dataset_fn,
    create_global_step as create_global_step,
    current_learning_rate as current_learning_rate,
    get_value as get_value,
    learning_rates as learning_rates,
    make_distributed_dataset as make_distributed_dataset,
)
from official_lite.orbit.utils.epoch_helper import EpochHelper as EpochHelper
from official_lite.orbit.utils.loop_fns import (
    LoopFnWithSummaries as LoopFnWithSummaries,
    create_loop_fn as create_loop_fn,
    create_tf_while_loop_fn as create_tf_while_loop_fn,
    create_tf_while_loop_fn_with_state as create_tf_while_loop_fn_with_state,
    guard_step as guard_step,
)
from official_lite.orbit.utils.summary_manager import SummaryManager as SummaryManager
from official_lite.orbit.utils.summary_manager_interface import (
    SummaryManagerInterface as SummaryManagerInterface,
)
from official_lite.orbit.utils.tpu_summaries import (
    OptionalSummariesFunction as OptionalSummariesFunction,
)
