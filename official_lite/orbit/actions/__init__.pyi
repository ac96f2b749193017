from official_lite.orbit.actions.conditional_action import ConditionalAction as ConditionalAction
from official_lite.orbit.actions.export_saved_model import (
    ExportFileManager as ExportFileManager,
    ExportSavedModel as ExportSavedModel,
)
from official_lite.orbit.actions.new_best_metric import (
    JSONPersistedValue as JSONPersistedValue,
    NewBestMetric as NewBestMetric,
)
from official_lite.orbit.actions.save_checkpoint_if_preempted import (
    SaveCheckpointIfPreempted as SaveCheckpointIfPreempted,
)
