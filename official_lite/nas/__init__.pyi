from official_lite.nas.architecture import (
    fixed_arch as fixed_arch,
    read_arch as read_arch,
    record_space as record_space,
    write_arch as write_arch,
)
from official_lite.nas.choices import (
    Cell as Cell,
    Choice as Choice,
    InputChoice as InputChoice,
    LayerChoice as LayerChoice,
    Repeat as Repeat,
    ValueChoice as ValueChoice,
)
from official_lite.nas.configs import (
    ArchTaskConfig as ArchTaskConfig,
    DartsConfig as DartsConfig,
    EnasConfig as EnasConfig,
    GumbelConfig as GumbelConfig,
    OneShotConfig as OneShotConfig,
    OneShotTrainerConfig as OneShotTrainerConfig,
    PenaltyConfig as PenaltyConfig,
    SposConfig as SposConfig,
)
from official_lite.nas.differentiable import (
    DartsTrainer as DartsTrainer,
    GumbelTrainer as GumbelTrainer,
    ProxylessTrainer as ProxylessTrainer,
)
from official_lite.nas.enas import EnasTrainer as EnasTrainer
from official_lite.nas.one_shot_trainer import (
    ExportArch as ExportArch,
    OneShotTrainer as OneShotTrainer,
)
from official_lite.nas.resolution import (
    fixed_model as fixed_model,
    inherit_weights as inherit_weights,
    rebuilt_model as rebuilt_model,
    replace_input_choice as replace_input_choice,
    replace_layer_choice as replace_layer_choice,
    resolve_choices as resolve_choices,
    space_of as space_of,
)
from official_lite.nas.spos import SposTrainer as SposTrainer
