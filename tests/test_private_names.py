"""The private names of TensorFlow, Keras and Optuna that the package uses.

A new release may drop any of them without notice; then these tests say what stops working.
"""

import argparse
import ast
import importlib
import importlib.metadata
import os
import pathlib
import sys
from collections.abc import Callable, Iterator

import keras
import optuna
import tensorflow as tf

_PACKAGE = pathlib.Path(__file__).parents[1] / "official_lite"
_OPTIMIZER = "keras.optimizers:Optimizer"

# The module or class that has the private name, the name, and the feature that needs it.
_NAMES = [
    ("keras:Model", "_flatten_layers", "freezing, batch normalization hooks and warm starts"),
    ("keras:Layer", "_default_save_signature", "the base classes of `keras2`"),
    ("keras:Layer", "_get_call_context", "the checks of the first step and `trainer.remat`"),
    ("keras:Layer", "_lock_state", "the base classes of `keras2`"),
    ("keras:Layer", "_track_variable", "the base classes of `keras2`"),
    ("keras:Layer", "_trackable_children", "the base classes of `keras2`"),
    ("keras.layers:EinsumDense", "_update_kernel_initializer", "the attention of `keras2`"),
    ("keras.layers:MultiHeadAttention", "_build_attention", "the attention of `keras2`"),
    ("keras.layers:MultiHeadAttention", "_compute_attention_mask", "the attention of `keras2`"),
    ("keras.layers:MultiHeadAttention", "_make_output_dense", "the attention of `keras2`"),
    ("keras.layers:MultiHeadAttention", "_masked_softmax", "the attention of `keras2`"),
    ("tensorflow:__internal__.dispatch", "GlobalOpDispatcher", "symbolic tensors in ports"),
    ("tensorflow:Module", "_flatten", "the parts of multitask models and of modules"),
    ("keras.src.models.functional:Functional", "_run_through_graph", "found architectures"),
    (_OPTIMIZER, "_get_variable_index", "the sparse update steps, AdamW, LAMB and LARS"),
    (_OPTIMIZER, "_apply_weight_decay", "the sparse update steps"),
    (_OPTIMIZER, "_use_weight_decay", "AdamW and the sparse update steps"),
    (_OPTIMIZER, "_backend_update_step", "distributed gradients and the sparse update steps"),
    (_OPTIMIZER, "_backend_apply_gradients", "distributed gradients"),
    (_OPTIMIZER, "_get_current_learning_rate", "the optimizers of `keras2`"),
    (_OPTIMIZER, "_clip_gradients", "distributed gradients and AdamW"),
    (_OPTIMIZER, "_check_variables_are_known", "the updates of a `MultiOptimizer`"),
    ("keras.optimizers:LossScaleOptimizer", "_stateful_handle_finite_grads", "loss scaling"),
    ("keras.optimizers:LossScaleOptimizer", "_stateful_handle_non_finite_grads", "loss scaling"),
    ("tensorflow:Graph", "_get_function", "the memory estimate of a dry run"),
    ("tensorflow:Operation", "_add_control_input", "the step guard"),
    ("keras.src.losses.loss", "scale_loss_for_distribution", "the mean of a loss over replicas"),
    ("keras.src.losses.loss", "unscale_loss_for_distribution", "the mean of a loss over replicas"),
    (
        "keras.src.backend.common.stateless_scope",
        "in_stateless_scope",
        "lookups, remat, statistics",
    ),
    ("keras.src.backend.common.global_state", "set_global_attribute", "the names of a run"),
    (
        "tensorflow.python.ops.control_flow_util",
        "GraphOrParentsInXlaContext",
        "distributed gradients, random numbers and `trainer.remat`",
    ),
    (
        "tensorflow.python.ops.gen_stateless_random_ops_v2",
        "stateless_random_uniform_v2",
        "uniform random numbers, which are the same with XLA",
    ),
    (
        "tensorflow.python.ops.gen_stateless_random_ops_v2",
        "stateless_random_normal_v2",
        "normal random numbers, which are the same with XLA",
    ),
    (
        "tensorflow.python.ops.gen_stateless_random_ops_v2",
        "stateless_random_uniform_full_int_v2",
        "random numbers, which are the same with XLA",
    ),
    (
        "tensorflow.python.distribute.input_lib",
        "get_iterator_spec_from_dataset",
        "parameter servers",
    ),
    (
        "tensorflow.python.framework.auto_control_deps_utils",
        "get_read_write_resource_inputs",
        "virtual replicas, and what a replica updates by itself",
    ),
    (
        "tensorflow.python.distribute.values",
        "_on_write_update_replica",
        "variables with an aggregation in a step with virtual replicas",
    ),
    ("tensorflow:train.CheckpointManager", "_record_state", "checkpoints"),
    (
        "tensorflow.python.eager.context",
        "_context",
        "the warning about a late `runtime.xla_cache_dir`",
    ),
    (
        "tensorflow.python.eager.context:Context",
        "configure_coordination_service",
        "the error about a worker that is lost while TensorFlow starts",
    ),
    (
        "tensorflow.python.distribute.coordinator.values",
        "PerWorkerDistributedIterator",
        "parameter servers",
    ),
]

# The modules that import private modules. Remove an entry together with its last import, and avoid
# new entries.
_IMPORTS = {
    "common/distribute_utils.py": {"tensorflow.python.eager"},
    "common/keras_variables.py": {"keras.src.backend.common", "tensorflow.python.framework"},
    "execution/executors.py": {
        "tensorflow.python.distribute",
        "tensorflow.python.distribute.coordinator",
    },
    "execution/virtual_replicas.py": {"tensorflow.python.distribute"},
    "keras2/backend.py": {"keras._tf_keras.keras"},
    "modeling/distributed_gradients.py": {"keras.src.losses", "tensorflow.python.ops"},
    "modeling/embedding_lookups.py": {"keras.src.backend.common"},
    "modeling/remat.py": {"keras.src.backend.common", "tensorflow.python.ops"},
    "modeling/replica_state.py": {"keras.src.backend.common", "tensorflow.python.ops"},
    "orbit/hooks/batch_norm_statistics.py": {"keras.src.backend.common"},
}


def test_listed_private_names_exist_in_the_installed_releases() -> None:
    lacking = []
    for place, name, use in _NAMES:
        module, _, owner = place.partition(":")
        found = importlib.import_module(module)
        for part in filter(None, owner.split(".")):
            found = getattr(found, part)
        if not hasattr(found, name):
            release = importlib.metadata.version(module.partition(".")[0])
            lacking.append(f"`{place}` of {release} has no `{name}`; this stops working: {use}")
    assert lacking == []


def _optimizer(kind: str, **arguments: object) -> keras.optimizers.Optimizer:
    optimizer = getattr(keras.optimizers, kind)(**arguments)
    optimizer.build([keras.Variable([0.0])])
    return optimizer


def _compiled() -> keras.Model:
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile(loss="mse", metrics=["mae"])
    return model


def _functional() -> keras.Model:
    inputs = keras.Input((1,))
    return keras.Model(inputs, keras.layers.Dense(1)(inputs))


def _attention() -> keras.Layer:
    layer = keras.layers.MultiHeadAttention(1, 2)
    layer(tf.ones([1, 2, 2]), tf.ones([1, 2, 2]))
    return layer


def _checkpoint_manager() -> tf.train.CheckpointManager:
    step = tf.Variable(0)
    return tf.train.CheckpointManager(
        tf.train.Checkpoint(), "unused", max_to_keep=1, step_counter=step, checkpoint_interval=1
    )


# Private attributes that only instances have: a function that creates an instance, the attributes,
# and the feature that needs them.
_INSTANCES: dict[str, tuple[Callable[[], object], list[str], str]] = {
    "a TensorFlow variable": (
        lambda: tf.Variable(0.0),
        ["_handle_name"],
        "names of variables for optimizers of Keras 2",
    ),
    "a Keras variable": (lambda: keras.Variable(0.0), ["_value"], "`trainer.remat`"),
    "a replica context": (
        tf.distribute.get_replica_context,
        ["_replica_id_in_sync_group"],
        "virtual replicas",
    ),
    "a built Adagrad": (lambda: _optimizer("Adagrad"), ["_accumulators"], "sparse updates"),
    "a built Adadelta or RMSprop": (
        lambda: _optimizer("RMSprop", centered=True),
        ["_average_gradients", "_velocities"],
        "sparse updates",
    ),
    "a built Adam": (
        lambda: _optimizer("Adam", amsgrad=True),
        [
            *("_momentums", "_velocities", "_velocity_hats", "_trainable_variables"),
            *("_iterations", "_learning_rate", "_trainable_variables_indices", "_variables"),
        ],
        "sparse updates, LAMB, LARS, the gradient accumulator, hot starts, and checkpoints of "
        "Keras 2",
    ),
    "a built SGD": (lambda: _optimizer("SGD"), ["_distribution_strategy"], "sparse updates"),
    "a compiled model": (
        _compiled,
        ["_loss_tracker", "_compile_metrics"],
        "the metrics of compiled models",
    ),
    "the metrics of a compiled model": (
        lambda: _compiled()._compile_metrics,
        ["_user_metrics", "_user_weighted_metrics"],
        "the column `class` of predictions",
    ),
    "a metric that creates its variables late": (
        keras.metrics.F1Score,
        ["_built"],
        "such metrics on several replicas",
    ),
    "an optimizer with averages": (
        lambda: _optimizer("SGD", use_ema=True),
        ["_model_variables_moving_average"],
        "the evaluation of averages",
    ),
    "a layer": (
        lambda: keras.layers.Dense(1),
        ["_trainable_variables", "_non_trainable_variables"],
        "freezing and found architectures",
    ),
    "a layer of a port": (
        lambda: keras.layers.Dense(1),
        ["_convert_input_args", "_dtype_policy", "_tracked"],
        "the base classes of `keras2`",
    ),
    "a tensor with a mask": (
        lambda: keras.layers.Masking()(tf.zeros([1, 1, 1])),
        ["_keras_mask"],
        "the losses of `keras2` and `trainer.remat`",
    ),
    "a functional model": (
        _functional,
        [
            *("_inputs_struct", "_tracker"),
            *("_nodes", "_nodes_by_depth", "_operations", "_operations_by_depth"),
        ],
        "the base classes of `keras2`, and losses and metrics of symbolic tensors",
    ),
    "a lookup layer": (
        lambda: keras.layers.IntegerLookup(vocabulary=[1]),
        ["_has_input_vocabulary"],
        "the check for layers that must be adapted",
    ),
    "a built attention": (
        _attention,
        [
            *("_query_dense", "_key_dense", "_value_dense", "_output_dense", "_dropout_layer"),
            *("_dot_product_equation", "_combine_equation", "_key_dim", "_output_shape"),
            *("_layers", "_metrics"),
        ],
        "the base classes of `keras2`",
    ),
    "a checkpoint manager": (
        _checkpoint_manager,
        ["_checkpoint_interval", "_step_counter", "_keep_checkpoint_every_n_hours"],
        "checkpoints at intervals",
    ),
    "a tracked object": (
        lambda: tf.train.Checkpoint(part=tf.Variable(0)),
        ["_deferred_dependencies", "_track_trackable"],
        "the fallback to an older checkpoint, and restores with other frozen weights",
    ),
    "a frozen trial": (
        lambda: optuna.trial.create_trial(value=0.0),
        ["_trial_id"],
        "the workers of a study",
    ),
    "an iterator": (
        lambda: iter(tf.data.Dataset.range(1)),
        ["_iterator_resource", "_type_spec"],
        "restarted evaluation data and parameter servers",
    ),
    "the handle of a variable": (
        lambda: tf.Variable(0).handle,
        ["_handle_data"],
        "the comparison of execution modes",
    ),
    "the context of TensorFlow": (
        lambda: importlib.import_module("tensorflow.python.eager.context").context(),
        ["_physical_devices"],
        "the warning about a late `runtime.xla_cache_dir`",
    ),
    "a parser's subcommands": (lambda: argparse, ["_SubParsersAction"], "shell completion"),
    "the interpreter": (lambda: sys, ["_current_frames"], "the warning about stalls"),
    "the operating system": (lambda: os, ["_exit"], "the end of a preempted process"),
}

# Private names of TensorFlow that exist only in a cluster or inside a graph; the tests of parameter
# servers and of the TensorBoard writer use them. tf.distribute looks for `_create_empty_value`, and
# the tests of missing parts with two replicas fail without it.
_ELSEWHERE = {
    *("_allow_run_without_coordinator", "_create_empty_value", "_get", "_num_ps", "_resource"),
}


def test_listed_private_attributes_exist_in_the_installed_releases() -> None:
    lacking = []
    for thing, (build, names, use) in _INSTANCES.items():
        found = build()
        missing = [name for name in names if not hasattr(found, name)]
        if missing:
            lacking.append(f"{thing} has no {', '.join(missing)}; this stops working: {use}")
    assert lacking == []


def test_every_private_name_in_use_is_listed() -> None:
    listed = {name for _, name, _ in _NAMES} | _ELSEWHERE
    for _, names, _ in _INSTANCES.values():
        listed.update(names)
    used: set[str] = set()
    own: set[str] = set()
    for path in _PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            used.update(_private_names_read(node))
            own.update(_names_defined(node))
    assert sorted(used - own - listed) == []


def _private_names_read(node: ast.AST) -> Iterator[str]:
    name: object = None
    if isinstance(node, ast.Attribute):
        name = node.attr
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in {"getattr", "hasattr", "setattr"} and len(node.args) > 1:
            name = getattr(node.args[1], "value", None)
    if isinstance(name, str) and name.startswith("_") and not name.startswith("__"):
        yield name


def _names_defined(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.alias):
        yield node.asname or node.name
    elif isinstance(node, ast.keyword) and node.arg:
        yield node.arg
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            yield node.attr
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        # An assignment to `__dict__` defines an attribute without the wrappers of `tf.Module`.
        if isinstance(node.value, ast.Attribute) and node.value.attr == "__dict__":
            yield str(node.slice.value)


def test_only_the_listed_modules_import_private_modules() -> None:
    found: dict[str, set[str]] = {}
    for path in _PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                modules = {f"{node.module}.{alias.name}" for alias in node.names}
                modules = {node.module or ""} if _is_private(node.module or "") else modules
            elif isinstance(node, ast.Import):
                modules = {alias.name for alias in node.names}
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
