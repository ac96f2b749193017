"""Tables of the Keras 2 names that Keras 3 renamed, changed or removed.

Names are written as after `import keras`, no matter how a program imports Keras.
"""

# Maps the prefixes under which programs import Keras 2 to the prefixes in Keras 3.
KERAS_2_ROOTS = {
    "tf_keras": "keras",
    "tensorflow.keras": "keras",
    "tensorflow.compat.v2.keras": "keras",
    "tensorflow.python.keras": "keras.src",
    "tensorflow.losses": "keras.losses",
    "tensorflow.metrics": "keras.metrics",
    "tensorflow.optimizers": "keras.optimizers",
    "tensorflow.initializers": "keras.initializers",
}

# Functions of `keras.backend` that have the same name, defaults and results in `keras.ops`.
_SAME_IN_OPS = (
    "abs all any cast categorical_crossentropy cos elu equal exp greater greater_equal less "
    "less_equal log logsumexp max maximum mean min minimum not_equal one_hot ones_like prod round "
    "sigmoid sign sin softmax softplus softsign square squeeze stack std sum tanh "
    "transpose var zeros_like"
)
BACKEND_TO_OPS = {
    **{name: f"keras.ops.{name}" for name in _SAME_IN_OPS.split()},
    "eval": "keras.ops.convert_to_numpy",
    "get_value": "keras.ops.convert_to_numpy",
    "permute_dimensions": "keras.ops.transpose",
    "pow": "keras.ops.power",
    "repeat_elements": "keras.ops.repeat",
}

# Functions that Keras 3 lacks in `keras.backend` but keeps in `tf.keras.backend`.
_OF_TF_KERAS = (
    "arange argmax argmin batch_dot batch_flatten batch_get_value batch_normalization "
    "batch_set_value bias_add concatenate constant conv1d conv2d conv2d_transpose conv3d "
    "count_params ctc_batch_cost ctc_decode ctc_label_dense_to_sparse depthwise_conv2d dot "
    "dropout expand_dims foldl foldr hard_sigmoid in_top_k map_fn moving_average_update "
    "pool2d pool3d random_bernoulli random_normal_variable random_uniform_variable repeat "
    "resize_images resize_volumes reverse separable_conv2d spatial_2d_padding "
    "spatial_3d_padding switch temporal_padding to_dense variable"
)
# Functions that differ from those of the same name in `keras.ops` and `keras.random`: in a formula,
# an argument or a default, in what they return (a variable, or a tensor in place of a tuple),
# because they accept symbolic sizes, or because they draw other numbers in each call with a `seed`.
_UNLIKE_OPS = (
    "binary_crossentropy clip cumprod cumsum eye l2_normalize ones random_normal random_uniform "
    "reshape shape sparse_categorical_crossentropy sqrt stop_gradient tile truncated_normal zeros"
)
BACKEND_OF_TF_KERAS = frozenset(f"{_OF_TF_KERAS} {_UNLIKE_OPS}".split())

_SHORT_LOSSES = {
    "mse": "mean_squared_error",
    "mae": "mean_absolute_error",
    "mape": "mean_absolute_percentage_error",
    "msle": "mean_squared_logarithmic_error",
    "kld": "kl_divergence",
    "kullback_leibler_divergence": "kl_divergence",
    "logcosh": "log_cosh",
}

# Maps names in private modules of Keras 2 (below `keras.src`) to public names that differ.
PRIVATE = {"LossFunctionWrapper": "keras.__internal__.losses.LossFunctionWrapper"}

# Maps renamed prefixes of names to their new prefixes. The longest prefix that matches a name is
# used.
RENAMED = {
    "keras.__internal__.enable_unsafe_deserialization": (
        "keras.config.enable_unsafe_deserialization"
    ),
    "keras.experimental.CosineDecay": "keras.optimizers.schedules.CosineDecay",
    "keras.experimental.CosineDecayRestarts": "keras.optimizers.schedules.CosineDecayRestarts",
    "keras.layers.CuDNNGRU": "keras.layers.GRU",
    "keras.layers.CuDNNLSTM": "keras.layers.LSTM",
    "keras.layers.experimental.EinsumDense": "keras.layers.EinsumDense",
    "keras.layers.experimental.preprocessing": "keras.layers",
    "keras.mixed_precision.experimental.LossScaleOptimizer": (
        "keras.mixed_precision.LossScaleOptimizer"
    ),
    "keras.mixed_precision.experimental.Policy": "keras.mixed_precision.Policy",
    "keras.mixed_precision.experimental.global_policy": "keras.mixed_precision.global_policy",
    "keras.mixed_precision.experimental.set_policy": "keras.mixed_precision.set_global_policy",
    "keras.optimizers.experimental": "keras.optimizers",
    "keras.optimizers.legacy": "keras.optimizers",
    "keras.utils.Sequence": "keras.utils.PyDataset",
    **{
        f"keras.{package}.{spelling}": f"keras.{package}.{new}"
        for package in ("losses", "metrics")
        for old, new in _SHORT_LOSSES.items()
        for spelling in {old, old.upper() if len(old) < 5 else old}
    },
    **{f"keras.backend.{old}": new for old, new in BACKEND_TO_OPS.items()},
}

# Maps class attributes of Keras 2 to the strings that replace them in Keras 3.
STRINGS = {
    "keras.losses.Reduction.AUTO": "sum_over_batch_size",
    "keras.losses.Reduction.NONE": "none",
    "keras.losses.Reduction.SUM": "sum",
    "keras.losses.Reduction.SUM_OVER_BATCH_SIZE": "sum_over_batch_size",
}

# Maps a prefix of the names of functions and classes to the arguments that change in their calls.
# Each argument's old name is mapped to its new name, or to None if the port removes the argument.
RENAMED_ARGUMENTS: dict[str, dict[str, str | None]] = {
    "keras.optimizers.": {"lr": "learning_rate", "jit_compile": None},
    "keras.ops.one_hot": {"indices": "x"},
    "keras.ops.power": {"x": "x1", "a": "x2"},
    "keras.ops.repeat": {"rep": "repeats"},
    "keras.ops.transpose": {"pattern": "axes"},
    **{
        f"keras.ops.{name}": {"x": "x1", "y": "x2"}
        for name in (
            *("equal", "greater", "greater_equal", "less", "less_equal", "maximum", "minimum"),
            "not_equal",
        )
    },
    "keras.layers.BatchNormalization": {"fused": None},
    "keras.layers.Embedding": {"input_length": None},
    "keras.layers.LeakyReLU": {"alpha": "negative_slope"},
    "keras.layers.InputLayer": {"batch_input_shape": "batch_shape", "input_shape": "shape"},
    **{
        f"keras.{module}.{verb}": {"use_legacy_format": None}
        for module in (
            *("activations", "constraints", "initializers", "layers", "losses", "metrics"),
            *("optimizers", "optimizers.schedules", "regularizers"),
        )
        for verb in ("serialize", "deserialize")
    },
}

# Maps each removed argument to the prefix of the affected calls and to advice for the user. The
# port drops an argument whose value is None, False or 0.
GONE_ARGUMENTS: dict[str, tuple[str, str]] = {
    "batch_input_shape": ("keras.", "start the model with `keras.Input(batch_shape=...)`"),
    "decay": ("keras.optimizers.", "use a schedule of `keras.optimizers.schedules`"),
    "ragged": ("keras.", "ragged inputs are not supported"),
    "renorm": ("keras.layers.", "batch renormalization is not supported"),
    "save_format": (
        "",
        "use a path that ends in `.keras`, or call `model.export(directory)`",
    ),
    "time_major": ("keras.layers.", "transpose before and after the layer"),
    "virtual_batch_size": ("keras.layers.", "ghost batch normalization is not supported"),
    "weights": ("keras.layers.", "call `set_weights` once the layer is built"),
}

# Removed methods and attributes of layers, models, metrics and optimizers.
GONE_METHODS = {
    "_build_from_signature": "override `build(self, query_shape, value_shape, key_shape=None)`",
    **dict.fromkeys(
        (
            "_resource_apply_dense",
            "_resource_apply_sparse",
            "_resource_apply_sparse_duplicate_indices",
        ),
        "override `update_step(self, gradient, variable, learning_rate)`",
    ),
    "_create_slots": "override `build(self, variables)`",
    "_prepare_local": "override `update_step(self, gradient, variable, learning_rate)`",
    "_built_from_signature": "the layer is built before `call`",
    "_compute_dtype": "use `compute_dtype`",
    "_decayed_lr": "use `optimizer.learning_rate`, which is the value at this step",
    "add_metric": "keep a `keras.metrics.Mean()` as an attribute and call `update_state`",
    "add_update": "assign to the variable in `call`",
    "compiled_loss": "call `model.compute_loss(x, y, y_pred)`",
    "get_input_at": "Keras 3 does not number the nodes of a layer; keep the tensor instead",
    "get_output_at": "Keras 3 does not number the nodes of a layer; keep the tensor instead",
    "get_updates": "call `apply_gradients`",
    # The port renames the method of metrics and layers.
    "reset_states": "call `reset_state()` of each layer of the model that has a state",
    "predict_generator": "call `predict`",
    "fit_generator": "call `fit`",
}

# Methods that custom Keras 2 optimizers override or call.
OF_KERAS_2_OPTIMIZERS = frozenset(
    (
        *("_create_slots", "_get_hyper", "_prepare_local", "_resource_apply_dense"),
        *("_resource_apply_sparse", "_resource_apply_sparse_duplicate_indices", "_set_hyper"),
    )
)

# Members of Keras 2 classes that the base classes in `official_lite.keras2` provide.
OF_KERAS_2_HABITS = OF_KERAS_2_OPTIMIZERS | {
    *("_build_from_signature", "_built_from_signature", "_compute_dtype", "_decayed_lr"),
    *("add_metric", "add_update"),
}

# Advice about removed names; other removed names are reported without advice.
ADVICE = {
    "keras.backend.function": "use a `keras.Model` with the same inputs and outputs",
    "keras.backend.gradients": "use `tf.GradientTape`",
    "keras.backend.in_train_phase": "use the argument `training` of `call`",
    "keras.backend.learning_phase_scope": "use the argument `training` of `call`",
    "keras.backend.set_learning_phase": "pass the argument `training` to the call",
    "keras.layers.LocallyConnected1D": "it has no replacement",
    "keras.layers.LocallyConnected2D": "it has no replacement",
    "keras.layers.ThresholdedReLU": "use `keras.layers.ReLU(threshold=...)`",
    "keras.layers.experimental.RandomFourierFeatures": "write your own layer",
    "keras.layers.experimental.SyncBatchNormalization": (
        "use `keras.layers.BatchNormalization(synchronized=True)`"
    ),
    "keras.losses.Reduction": 'use the strings "sum", "none" and "sum_over_batch_size"',
    "keras.utils.generic_utils": "use `keras.saving`",
    "keras.wrappers.scikit_learn": "use the classes of `keras.wrappers`",
}

# TensorFlow functions and their `keras.ops` equivalents, which accept the symbolic tensors of
# functional models: the new name in `keras.ops` and the new argument names. Only functions whose
# positional arguments have the same meaning are listed.
_REDUCE = {"input_tensor": "x", "axis": "axis", "keepdims": "keepdims"}
_UNARY = {"x": "x", "input": "x", "features": "x"}
_BINARY = {"x": "x1", "y": "x2"}
TF_TO_OPS: dict[str, tuple[str, dict[str, str]]] = {
    "broadcast_to": ("broadcast_to", {"input": "x", "shape": "shape"}),
    "cast": ("cast", {"x": "x", "dtype": "dtype"}),
    "clip_by_value": (
        "clip",
        {"t": "x", "clip_value_min": "x_min", "clip_value_max": "x_max"},
    ),
    "concat": ("concatenate", {"values": "xs", "axis": "axis"}),
    "expand_dims": ("expand_dims", {"input": "x", "axis": "axis"}),
    "matmul": ("matmul", {"a": "x1", "b": "x2"}),
    "nn.softmax": ("softmax", {"logits": "x", "axis": "axis"}),
    "nn.log_softmax": ("log_softmax", {"logits": "x", "axis": "axis"}),
    "one_hot": ("one_hot", {"indices": "x", "depth": "num_classes"}),
    "ones_like": ("ones_like", {"input": "x", "dtype": "dtype"}),
    "pad": ("pad", {"tensor": "x", "paddings": "pad_width"}),
    "reshape": ("reshape", {"tensor": "x", "shape": "newshape"}),
    "stack": ("stack", {"values": "x", "axis": "axis"}),
    "stop_gradient": ("stop_gradient", {"input": "variable"}),
    "tile": ("tile", {"input": "x", "multiples": "repeats"}),
    "transpose": ("transpose", {"a": "x", "perm": "axes"}),
    "where": ("where", {"condition": "condition", "x": "x1", "y": "x2"}),
    "zeros_like": ("zeros_like", {"input": "x", "dtype": "dtype"}),
    **{
        f"{prefix}reduce_{old}": (new, _REDUCE)
        for prefix in ("", "math.")
        for old, new in {
            **{name: name for name in ("all", "any", "max", "mean", "min", "prod", "sum")},
            "std": "std",
            "variance": "var",
            "logsumexp": "logsumexp",
        }.items()
    },
    **{
        f"{prefix}{name}": (name, _UNARY)
        for prefix, names in {
            "": "abs cos exp floor round sigmoid sign sin sqrt square tanh",
            "math.": (
                "abs ceil cos exp floor log log1p reciprocal round rsqrt sigmoid sign sin softplus "
                "sqrt square tanh"
            ),
            "nn.": "elu relu relu6 selu sigmoid silu softplus swish tanh",
        }.items()
        for name in names.split()
    },
    **{
        f"{prefix}{name}": (name, _BINARY)
        for prefix in ("", "math.")
        for name in (
            *("add", "divide", "equal", "greater", "greater_equal", "less", "less_equal"),
            *("logical_and", "logical_or", "maximum", "minimum", "multiply", "not_equal"),
            *("subtract",),
        )
    },
}
