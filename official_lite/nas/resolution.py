"""Functions that find the choices of a model, set what they compute, and remove them.

A resolver computes a choice: `resolver(choice, inputs, training)`. It can be replaced without
changing the model, which may be functional or a subclass of `keras.Model`. The final model has no
choices any more: `fixed_model` keeps the weights of the searched model, `rebuilt_model` does not.

The resolvers of this module compute an open choice as a mixture of its options or as one of them.
The `Draw` of a step tells them which paths, noise and temperature to use. All draws are derived
from the seed of the run and the step. Therefore all replicas draw the same values, and a resumed
training draws the same values as an uninterrupted one.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from official_lite.common import errors, nests
from official_lite.nas import architecture, choices
from official_lite.nas.choices import Choice

__all__ = [
    "Draw",
    "GateResolver",
    "GumbelResolver",
    "MixtureResolver",
    "PathResolver",
    "active_choices",
    "active_draw",
    "current_draw",
    "decided_by",
    "find_choices",
    "fixed_model",
    "gumbel_noise",
    "inherit_weights",
    "rebuilt_model",
    "replace_input_choice",
    "replace_layer_choice",
    "require_sum",
    "resolve_choices",
    "sample",
    "space_of",
    "variable_name",
]


def find_choices(model: keras.Model) -> list[Choice]:
    """Return the choices of a model in model order, including choices inside candidates.

    Raises:
        errors.ConfigValueError: If two choices with the same label have different options.
    """
    found = list(_walk(model, lambda choice: range(len(choice.options))))
    known: dict[str, Choice] = {}
    for choice in found:
        first = known.setdefault(choice.label, choice)
        if first.options != choice.options:
            raise architecture.different_options(choice.label, first.options, choice.options)
    return found


def active_choices(model: keras.Model, picks: Mapping[str, int]) -> list[Choice]:
    """Return the choices on the chosen path, without those inside candidates that are not chosen.

    Args:
        model: A model with choices.
        picks: The index of the chosen option for each label.
    """
    return list(_walk(model, lambda choice: [picks[choice.label]]))


def space_of(model: keras.Model) -> dict[str, list[Any]]:
    """Return the options of each label of a model."""
    return {choice.label: list(choice.options) for choice in find_choices(model)}


def decided_by(model: keras.Model, arch: Mapping[str, Any]) -> dict[str, int]:
    """Return the index of the option that an architecture chooses, by label; 0 by default.

    Raises:
        errors.ConfigValueError: If the architecture names an unknown option.
    """
    return {
        label: architecture.index_of(label, options, arch.get(label, options[0]))
        for label, options in space_of(model).items()
    }


def resolve_choices(
    model: keras.Model, makers: Mapping[type[Choice], Callable[[Choice], Any]]
) -> list[tuple[str, Any]]:
    """Set the resolver of each choice of a model. Choices with the same label share a resolver.

    Args:
        model: A model, built or not. Its choices must already be attributes of its layers.
        makers: For each class of choices, a function that creates a resolver. It is called with the
            first choice of each label.

    Returns:
        The label and resolver of each choice, in the order of the model.

    Raises:
        errors.ConfigValueError: If `makers` lacks the class of a choice.
    """
    resolvers: dict[str, Any] = {}
    resolved = []
    for choice in find_choices(model):
        make = next((m for kind, m in makers.items() if isinstance(choice, kind)), None)
        if make is None:
            raise errors.ConfigValueError(
                f"The {type(choice).__name__} {choice.label!r} is not supported by this search, "
                f"which supports only {', '.join(kind.__name__ for kind in makers)}."
            )
        if choice.label not in resolvers:
            resolvers[choice.label] = make(choice)
        choice.set_resolver(resolvers[choice.label])
        resolved.append((choice.label, resolvers[choice.label]))
    return resolved


def replace_layer_choice(
    model: keras.Model,
    init_fn: Callable[[Any], Callable[[Any], Any]],
    modules: list[tuple[str, Any]] | None = None,
) -> list[tuple[str, Any]]:
    """Replace each `LayerChoice` by `init_fn(choice)`, with the name and behavior of NNI.

    Args:
        model: A model with choices.
        init_fn: Function that takes the choice and returns a callable. The callable receives the
            inputs of the choice.
        modules: A list to which the label and the replacement of each choice are appended.

    Returns:
        `modules`, or a new list if `modules` is None.
    """
    return _replace(model, choices.LayerChoice, init_fn, modules)


def replace_input_choice(
    model: keras.Model,
    init_fn: Callable[[Any], Callable[[Any], Any]],
    modules: list[tuple[str, Any]] | None = None,
) -> list[tuple[str, Any]]:
    """Replace each `InputChoice` by `init_fn(choice)`; see `replace_layer_choice`."""
    return _replace(model, choices.InputChoice, init_fn, modules)


def _replace(
    model: keras.Model,
    kind: type[Choice],
    init_fn: Callable[[Any], Callable[[Any], Any]],
    modules: list[tuple[str, Any]] | None,
) -> list[tuple[str, Any]]:
    modules = [] if modules is None else modules
    for choice in find_choices(model):
        if isinstance(choice, kind):
            module = init_fn(choice)
            choice.set_resolver(functools.partial(_call_module, module))
            modules.append((choice.label, module))
    return modules


def _call_module(
    module: Callable[[Any], Any], choice: Choice, inputs: nests.Nest, training: bool | None
) -> Any:
    return module(inputs)


def _walk(
    root: keras.layers.Layer, wanted: Callable[[Choice], Sequence[int] | range]
) -> Iterator[Choice]:
    """Yield the choices in a layer, descending only into the wanted options of each choice."""
    seen: set[int] = set()

    def visit(layer: keras.layers.Layer) -> Iterator[Choice]:
        if id(layer) in seen:
            return
        seen.add(id(layer))
        if not isinstance(layer, Choice):
            below = layer._layers
        else:
            yield layer
            below = [one for index in wanted(layer) for one in layer.layers_of(index)]
        for one in below:
            yield from visit(one)

    if isinstance(root, keras.layers.Layer):
        yield from visit(root)


def fixed_model(model: keras.Model, arch: Mapping[str, Any]) -> keras.Model:
    """Return the chosen path through a functional or sequential model, without any choices.

    The result shares the layers of `model`, and thus their weights. Saved as `.keras`, it can be
    loaded without this package.

    Args:
        model: A built model with choices.
        arch: The chosen option by label.

    Returns:
        The model without choices.

    Raises:
        errors.ConfigValueError: If `arch` names an unknown option, or if a custom layer or subclass
            model contains a choice, which only its constructor can remove. In the second case,
            rebuild the model within `fixed_arch` and use `inherit_weights`.
    """
    fixed: keras.Model = _Fixing(decided_by(model, arch)).fix(model)
    return fixed


def rebuilt_model(model: keras.Model, arch: Mapping[str, Any]) -> keras.Model:
    """Return a new model from the config of `model`, with new weights and without any choices.

    Args:
        model: A model with choices.
        arch: The chosen option by label. It may contain labels inside candidates that are not
            chosen.

    Returns:
        The model without choices.

    Raises:
        errors.ConfigError: If `arch` does not match the model, or if the model has no config.
    """
    on_path = active_choices(model, decided_by(model, arch))
    active = {choice.label for choice in on_path}
    architecture.require_labels(arch, needed=active, known=space_of(model).keys())
    if _is_functional(model) and not isinstance(model, keras.Sequential):
        return fixed_model(keras.models.clone_model(model), arch)
    try:
        config = model.get_config()
        accepted = inspect.signature(type(model).__init__).parameters.values()
        if all(one.kind is not one.VAR_KEYWORD for one in accepted):
            # Drop arguments that Keras adds to the config even if the constructor does not accept
            # them.
            unknown = {"name", "trainable", "dtype"} - {one.name for one in accepted}
            config = {name: value for name, value in config.items() if name not in unknown}
        with architecture.fixed_arch({label: arch[label] for label in active}):
            rebuilt: keras.Model = type(model).from_config(config)
    # Keras raises `NotImplementedError` if `get_config` is missing. The constructor raises
    # `TypeError` if it does not accept the config.
    except (NotImplementedError, TypeError) as error:
        raise errors.ConfigTypeError(
            f"{type(model).__name__} can't be rebuilt from its `get_config()`: {error} Instead of "
            "the model, pass its class or a function that builds it."
        ) from error
    return rebuilt


def inherit_weights(model: keras.Model, searched: keras.Model, arch: Mapping[str, Any]) -> None:
    """Copy the weights that a search has trained to a model that was built with `arch`.

    Args:
        model: A model that was built within `fixed_arch(arch)`.
        searched: The model with choices.
        arch: The chosen option by label.

    Raises:
        errors.ConfigValueError: If the shapes of the weights differ, or `arch` names an unknown
            option.
    """
    picks = decided_by(searched, arch)
    if isinstance(searched, keras.Sequential) or _is_functional(searched):
        source = _Fixing(picks).fix(searched).weights
    else:
        source = _weights_on_path(searched, picks)
    given, wanted = ([tuple(w.shape) for w in ws] for ws in (source, model.weights))
    if given != wanted:
        raise errors.ConfigValueError(
            f"The weights of {model.name!r} do not match the path through {searched.name!r}. "
            f"Expected the shapes {wanted}, got {given}. Build the model within `fixed_arch` with "
            "the same architecture."
        )
    for weight, value in zip(model.weights, source, strict=True):
        weight.assign(value)


class _Fixing:
    def __init__(self, picks: Mapping[str, int]) -> None:
        self._picks = picks

    def fix(self, layer: keras.layers.Layer) -> Any:
        """Return a layer with its choices replaced, or the layer itself if it has none."""
        if not find_choices(layer):
            return layer
        if isinstance(layer, Choice):
            return self._fix_choice(layer)
        if isinstance(layer, keras.Sequential):
            return keras.Sequential(
                [keras.Input(batch_shape=layer.input_shape, dtype=layer.inputs[0].dtype)]
                + [self.fix(one) for one in layer.layers],
                name=layer.name,
            )
        if _is_functional(layer):
            return keras.models.clone_model(
                layer, clone_function=self._fix_or_keep, call_function=self._call
            )
        raise errors.ConfigValueError(
            f"The choices in {layer.name!r}, a {type(layer).__name__}, can't be removed. Rebuild "
            "the model within `nas.fixed_arch`, and copy the weights with `nas.inherit_weights`."
        )

    def _fix_choice(self, choice: Choice) -> Any:
        layers = [self.fix(one) for one in choice.layers_of(self._picks[choice.label])]
        if len(layers) == 1:
            return layers[0]
        return keras.Sequential(layers) if layers else keras.layers.Identity()

    def _fix_or_keep(self, layer: keras.layers.Layer) -> Any:
        # Keep an `InputChoice` for now: `_call` replaces it later, because the replacement needs
        # the inputs.
        return layer if isinstance(layer, choices.InputChoice) else self.fix(layer)

    def _call(self, layer: keras.layers.Layer, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(layer, choices.InputChoice):
            return layer(*args, **kwargs)
        chosen = layer.options[self._picks[layer.label]]
        return choices.ChosenInputs(chosen, layer.reduction)(args[0])


def _is_functional(model: keras.layers.Layer) -> bool:
    # Keras has no public class for functional models, so detect them by a private method.
    return isinstance(model, keras.Model) and hasattr(model, "_run_through_graph")


def _weights_on_path(layer: keras.layers.Layer, picks: Mapping[str, int]) -> list[Any]:
    """Return the weights on the chosen path in the order of `layer.weights`, without duplicates."""
    found: dict[int, Any] = {}

    def visit(one: keras.layers.Layer) -> None:
        if isinstance(one, Choice):
            below = one.layers_of(picks[one.label])
        else:
            for weight in [*one._trainable_variables, *one._non_trainable_variables]:
                found.setdefault(id(weight), weight)
            below = one._layers
        for layer_below in below:
            visit(layer_below)

    visit(layer)
    return list(found.values())


# The largest number of equally spaced values (k + 0.5) / n in (0, 1) that float32 can represent.
_NUMBERS = 2**23
# The standard deviation of the initial α, as in NNI and the DARTS paper. Initially, all options are
# about equally probable.
_INITIAL_SPREAD = 1e-3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Draw:
    """The random draws that resolvers use in a step of the architecture or of the weights.

    Attributes:
        paths: The index of the drawn option for each label.
        noise: The noise to add to the logits of each label.
        temperature: The divisor of the noisy logits.
        gates: Whether to compute all options, with binary gates that let one of them through.
    """

    paths: Mapping[str, tf.Tensor] = dataclasses.field(default_factory=dict)
    noise: Mapping[str, tf.Tensor] = dataclasses.field(default_factory=dict)
    temperature: Any = 1.0
    gates: bool = False


# Each replica of a `MirroredStrategy` has its own thread, and thus its own value of this context
# variable.
_current: contextvars.ContextVar[Draw | None] = contextvars.ContextVar("draw", default=None)


def current_draw() -> Draw | None:
    """Return the active draw; None outside of training."""
    return _current.get()


@contextlib.contextmanager
def active_draw(draw: Draw | None) -> Iterator[None]:
    """Make `draw` the active draw of this thread while models are traced."""
    token = _current.set(draw)
    try:
        yield
    finally:
        _current.reset(token)


def gumbel_noise(sizes: Sequence[int], *, seed: int, step: tf.Tensor, salt: int) -> list[tf.Tensor]:
    """Return Gumbel noise. The argmax of logits plus this noise is a sample of their softmax.

    Args:
        sizes: The number of logits of each label.
        seed: The seed of the run.
        step: The number of completed steps, int64.
        salt: A number that distinguishes the independent draws within a step.
    """
    key = tf.stack([tf.constant(seed, tf.int64), tf.cast(step, tf.int64)])
    key = tf.random.experimental.stateless_fold_in(key, tf.constant(salt, tf.int64))
    # Draw integers, which are the same with and without XLA.
    integers = tf.random.stateless_uniform(
        [sum(sizes)], key, minval=0, maxval=_NUMBERS, dtype=tf.int32, alg="philox"
    )
    uniform = (tf.cast(integers, tf.float32) + 0.5) / _NUMBERS
    return tf.split(-tf.math.log(-tf.math.log(uniform)), list(sizes))


def sample(logits: Sequence[tf.Tensor], noise: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return an int32 index for each distribution, drawn with the given Gumbel noise."""
    return [
        tf.argmax(one + drawn, output_type=tf.int32)
        for one, drawn in zip(logits, noise, strict=True)
    ]


class MixtureResolver:
    """A resolver that sums all options, weighted by the softmax of α (DARTS).

    Create the resolver in the strategy's scope.

    Attributes:
        alpha: The architecture parameters α, of shape `[options]`.
    """

    def __init__(self, choice: Choice) -> None:
        require_sum(choice)
        prior = [math.log(p) for p in choice.prior] if choice.prior else 0.0
        noise = keras.random.normal([len(choice.options)], stddev=_INITIAL_SPREAD)
        self.alpha = keras.Variable(
            noise + prior, dtype="float32", autocast=False, name=variable_name("alpha", choice)
        )

    @property
    def variables(self) -> list[keras.Variable]:
        """The trainable variables."""
        return [self.alpha]

    def logits(self) -> tf.Tensor:
        """Return the logits of the options, of shape `[options]`."""
        return tf.convert_to_tensor(self.alpha)

    def probs(self) -> tf.Tensor:
        """Return the probabilities of the options, of shape `[options]`."""
        return tf.nn.softmax(self.logits())

    def export(self) -> int:
        """Return the index of the preferred option."""
        return int(tf.argmax(self.probs()))

    def __call__(self, choice: Choice, inputs: nests.Nest, training: bool | None) -> Any:
        return _mix(choice.outputs(inputs), self.weights(choice.label))

    def weights(self, label: str) -> tf.Tensor:
        """Return the factors of the options in the sum, of shape `[options]`."""
        return self.probs()


class GumbelResolver(MixtureResolver):
    """A resolver that sums all options, weighted by a Gumbel softmax of α.

    The weights are the softmax of (α + noise) / temperature, or of α alone outside of training.

    Args:
        choice: The choice.
        hard: Whether the output is the single option with the largest weight. The gradient is that
            of the soft weights (straight-through estimator).
    """

    def __init__(self, choice: Choice, *, hard: bool) -> None:
        super().__init__(choice)
        self._hard = hard

    def weights(self, label: str) -> tf.Tensor:
        draw = current_draw()
        if draw is None:
            return _one_hot_of_largest(self.logits()) if self._hard else self.probs()
        soft = tf.nn.softmax((self.logits() + draw.noise[label]) / draw.temperature)
        return _straight_through(soft, tf.argmax(soft)) if self._hard else soft


class PathResolver(MixtureResolver):
    """A resolver that computes the drawn option in a training step, else the preferred option."""

    def __call__(self, choice: Choice, inputs: nests.Nest, training: bool | None) -> Any:
        draw = current_draw()
        index = self.preferred() if draw is None else draw.paths[choice.label]
        return _switch(choice, inputs, index)

    def preferred(self) -> tf.Tensor:
        """Return the index of the preferred option, int32."""
        return tf.argmax(self.logits(), output_type=tf.int32)


class GateResolver(PathResolver):
    """A resolver that computes one option, or all options behind binary gates.

    The gates are used in steps of the architecture. They let one option through, and the gradient
    with respect to α is that of ProxylessNAS: Σ_j ∂L/∂g_j p_j (δ_ij − p_i).
    """

    def __call__(self, choice: Choice, inputs: nests.Nest, training: bool | None) -> Any:
        draw = current_draw()
        if draw is None or not draw.gates:
            return super().__call__(choice, inputs, training)
        gates = _straight_through(self.probs(), draw.paths[choice.label])
        return _mix(choice.outputs(inputs), gates)


def _mix(outputs: Sequence[Any], weights: tf.Tensor) -> Any:
    shares = tf.unstack(weights)
    return tf.add_n(
        [tf.cast(share, out.dtype) * out for share, out in zip(shares, outputs, strict=True)]
    )


def _switch(choice: Choice, inputs: nests.Nest, index: tf.Tensor) -> Any:
    def branch(number: int) -> Any:
        return lambda: choice.branch(number, inputs)

    return tf.switch_case(index, [branch(number) for number in range(len(choice.options))])


def _straight_through(probs: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    """Return a one-hot vector that has the gradient of the probabilities."""
    one_hot = tf.one_hot(index, probs.shape[0], dtype=probs.dtype)
    return tf.stop_gradient(one_hot - probs) + probs


def _one_hot_of_largest(logits: tf.Tensor) -> tf.Tensor:
    return tf.one_hot(tf.argmax(logits), logits.shape[0], dtype=logits.dtype)


def require_sum(choice: Choice) -> None:
    """Check that the inputs of a choice are added, as all one-shot trainers require."""
    reduction = getattr(choice, "reduction", "sum")
    if reduction not in ("sum", "mean"):
        raise errors.ConfigValueError(
            f"The choice {choice.label!r} has `reduction={reduction!r}`, which one-shot trainers "
            "don't support. Use `sum` or `mean`."
        )


def variable_name(prefix: str, choice: Choice) -> str:
    """Return a name for a variable that belongs to a choice."""
    return f"{prefix}_{re.sub(r'[^0-9A-Za-z_.]', '_', choice.label)}"
