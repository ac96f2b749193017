"""The private names of TensorFlow, Keras and Optuna that the package uses.

A new release may drop any of them without notice; then these tests say what stops working.
"""

import ast
import importlib
import importlib.metadata
import pathlib

import keras
import pytest

_PACKAGE = pathlib.Path(__file__).parents[1] / "official_lite"
_OPTIMIZER = "keras.optimizers:Optimizer"

# Where the name is looked up, the name, and what needs it.
_NAMES = [
    ("keras:Model", "_flatten_layers", "freezing, batch normalization hooks and warm starts"),
    ("keras:Layer", "_get_call_context", "the checks of the first step"),
    (_OPTIMIZER, "_get_variable_index", "the sparse update steps, AdamW, LAMB and LARS"),
    (_OPTIMIZER, "_apply_weight_decay", "the sparse update steps"),
    (_OPTIMIZER, "_use_weight_decay", "AdamW and the sparse update steps"),
    (_OPTIMIZER, "_backend_update_step", "distributed gradients and the sparse update steps"),
    (_OPTIMIZER, "_backend_apply_gradients", "distributed gradients"),
    (_OPTIMIZER, "_clip_gradients", "distributed gradients and AdamW"),
    ("keras.optimizers:LossScaleOptimizer", "_stateful_handle_finite_grads", "loss scaling"),
    ("keras.optimizers:LossScaleOptimizer", "_stateful_handle_non_finite_grads", "loss scaling"),
    ("tensorflow:Operation", "_add_control_input", "the step guard"),
    ("keras.src.losses.loss", "scale_loss_for_distribution", "the mean of a loss over replicas"),
    ("keras.src.losses.loss", "unscale_loss_for_distribution", "the mean of a loss over replicas"),
    ("keras.src.backend.common.stateless_scope", "in_stateless_scope", "embedding lookups"),
    (
        "tensorflow.python.ops.control_flow_util",
        "GraphOrParentsInXlaContext",
        "distributed gradients",
    ),
    (
        "tensorflow.python.distribute.input_lib",
        "get_iterator_spec_from_dataset",
        "parameter servers",
    ),
    (
        "tensorflow.python.distribute.coordinator.values",
        "PerWorkerDistributedIterator",
        "parameter servers",
    ),
]

# The modules that import private modules. Remove an entry with its import; do not add any lightly.
_IMPORTS = {
    "execution/parameter_server.py": {
        "tensorflow.python.distribute",
        "tensorflow.python.distribute.coordinator",
    },
    "modeling/atomic_sums.py": {"keras.src.backend.common"},
    "modeling/distributed_gradients.py": {"tensorflow.python.ops"},
    "modeling/embedding_lookups.py": {"keras.src.backend.common"},
    "modeling/keras_losses.py": {"keras.src.losses"},
}


@pytest.mark.parametrize(("place", "name", "use"), _NAMES)
def test_private_names_exist_in_the_installed_release(place: str, name: str, use: str) -> None:
    module, _, owner = place.partition(":")
    package = module.partition(".")[0]
    found = importlib.import_module(module)
    release = f"{package} {importlib.metadata.version(package)}"
    assert hasattr(getattr(found, owner) if owner else found, name), (
        f"{release} has no `{name}` in `{place}`. Without it, these stop working: {use}."
    )


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("Adagrad", ["_accumulators"]),
        ("Adam", ["_momentums", "_velocities", "_trainable_variables"]),
        ("SGD", ["_distribution_strategy"]),
    ],
)
def test_a_built_optimizer_has_the_private_slots(kind: str, names: list[str]) -> None:
    optimizer = getattr(keras.optimizers, kind)()
    optimizer.build([keras.Variable([0.0])])
    lacking = [name for name in names if not hasattr(optimizer, name)]
    assert not lacking, (
        f"In keras {keras.__version__}, {kind} has no {', '.join(lacking)}. "
        "Without them, the update steps of `modeling/update_steps.py` stop working."
    )


def test_only_the_listed_modules_import_private_modules() -> None:
    found: dict[str, set[str]] = {}
    for path in _PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            elif isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            else:
                continue
            for module in filter(_is_private, modules):
                found.setdefault(path.relative_to(_PACKAGE).as_posix(), set()).add(module)
    assert found == _IMPORTS


def _is_private(module: str) -> bool:
    first, *further = module.split(".")
    if first not in {"absl", "gin", "keras", "optuna", "tensorflow"}:
        return False
    return further[:1] in (["python"], ["src"]) or any(one.startswith("_") for one in further)
