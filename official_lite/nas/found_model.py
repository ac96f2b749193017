"""Functions that derive the final model from the model with choices."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import keras

from official_lite.common import errors
from official_lite.nas import architecture, choices, input_choice, resolution

__all__ = ["fixed_model", "inherit_weights", "rebuilt_model"]


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
    fixed: keras.Model = _Fixing(resolution.decided_by(model, arch)).fix(model)
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
    on_path = resolution.active_choices(model, resolution.decided_by(model, arch))
    active = {choice.label for choice in on_path}
    architecture.require_labels(arch, needed=active, known=resolution.space_of(model).keys())
    if _is_functional(model) and not isinstance(model, keras.Sequential):
        return fixed_model(keras.models.clone_model(model), arch)
    try:
        config = model.get_config()
        accepted = inspect.signature(type(model).__init__).parameters.values()
        if all(one.kind is not one.VAR_KEYWORD for one in accepted):
            # Keras adds these, also for a constructor that does not take them.
            unknown = {"name", "trainable", "dtype"} - {one.name for one in accepted}
            config = {name: value for name, value in config.items() if name not in unknown}
        with architecture.fixed_arch({label: arch[label] for label in active}):
            rebuilt: keras.Model = type(model).from_config(config)
    # Keras raises the first if `get_config` is missing, and the constructor the second.
    except (NotImplementedError, TypeError) as error:
        raise errors.ConfigTypeError(
            f"{type(model).__name__} can't be built again from its `get_config()`: {error} Pass "
            "the class or a function that builds the model instead of the model."
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
    picks = resolution.decided_by(searched, arch)
    if isinstance(searched, keras.Sequential) or _is_functional(searched):
        source = _Fixing(picks).fix(searched).weights
    else:
        source = _weights_on_path(searched, picks)
    given, wanted = ([tuple(w.shape) for w in ws] for ws in (source, model.weights))
    if given != wanted:
        raise errors.ConfigValueError(
            f"The weights of {model.name!r} do not match the path through {searched.name!r}. "
            f"Expected the shapes {wanted}, got {given}."
        )
    for weight, value in zip(model.weights, source, strict=True):
        weight.assign(value)


class _Fixing:
    def __init__(self, picks: Mapping[str, int]) -> None:
        self._picks = picks

    def fix(self, layer: keras.layers.Layer) -> Any:
        """Return a layer with its choices replaced, or the layer itself if it has none."""
        if not resolution.find_choices(layer):
            return layer
        if isinstance(layer, choices.Choice):
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

    def _fix_choice(self, choice: choices.Choice) -> Any:
        layers = [self.fix(one) for one in choice.layers_of(self._picks[choice.label])]
        if len(layers) == 1:
            return layers[0]
        return keras.Sequential(layers) if layers else keras.layers.Identity()

    def _fix_or_keep(self, layer: keras.layers.Layer) -> Any:
        # `_call` replaces an `InputChoice`, because it needs the inputs.
        return layer if isinstance(layer, input_choice.InputChoice) else self.fix(layer)

    def _call(self, layer: keras.layers.Layer, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(layer, input_choice.InputChoice):
            return layer(*args, **kwargs)
        chosen = layer.options[self._picks[layer.label]]
        return input_choice.ChosenInputs(chosen, layer.reduction)(args[0])


def _is_functional(model: keras.layers.Layer) -> bool:
    # Keras has no public class for functional models, so detect them by a private method.
    return isinstance(model, keras.Model) and hasattr(model, "_run_through_graph")


def _weights_on_path(layer: keras.layers.Layer, picks: Mapping[str, int]) -> list[Any]:
    """Return the weights on the chosen path in the order of `layer.weights`, without duplicates."""
    found: dict[int, Any] = {}

    def visit(one: keras.layers.Layer) -> None:
        if isinstance(one, choices.Choice):
            below = one.layers_of(picks[one.label])
        else:
            for weight in [*one._trainable_variables, *one._non_trainable_variables]:
                found.setdefault(id(weight), weight)
            below = one._layers
        for layer_below in below:
            visit(layer_below)

    visit(layer)
    return list(found.values())
