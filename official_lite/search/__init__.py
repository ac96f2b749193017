"""Hyperparameter and architecture search: studies that run many trials of an experiment.

::

    search:
      space: {task.model.units: [[32], [64, 64]], task.model.dropout_rate: [0.0, 0.1, 0.2]}
      metric: accuracy

Strategies, pruners and storage come from Optuna. Each trial is an ordinary run in its own model
directory, so an interrupted trial resumes from its checkpoint.
"""

import importlib.util

from official_lite.common import errors

if importlib.util.find_spec("optuna") is None:
    raise errors.ConfigValueError(
        "A search requires Optuna, which is not installed: pip install 'official-lite[search]'"
    )

from official_lite.search.evaluators import (
    FunctionalTrainer as FunctionalTrainer,
    ModelEvaluator as ModelEvaluator,
    TaskModel as TaskModel,
    TaskTrainer as TaskTrainer,
)
from official_lite.search.search_config import SearchConfig as SearchConfig
from official_lite.search.search_config import Space as Space
from official_lite.search.study_runner import (
    Experiment as Experiment,
    run_search as run_search,
    run_study as run_study,
)
from official_lite.search.trial_run import (
    TrialRun as TrialRun,
    current_trial as current_trial,
    report_final_result as report_final_result,
    report_intermediate_result as report_intermediate_result,
)
