"""Functions that find the choices of a model and set what they compute.

A resolver computes a choice: `resolver(choice, inputs, training)`. It can be replaced without
changing the model, which may be functional or a subclass of `keras.Model`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import keras

from official_lite.common import errors, types
from official_lite.nas import architecture, choices, input_choice
from official_lite.nas.choices import Choice

__all__ = [
    "FixedResolver",
    "Resolver",
    "active_choices",
    "decided_by",
    "find_choices",
    "replace_input_choice",
    "replace_layer_choice",
    "resolve_choices",
    "space_of",
]


class Resolver(Protocol):
    """The interface of a resolver, which computes all choices of one label."""

    def __call__(self, choice: Choice, inputs: types.Nest, training: bool | None) -> Any:
        """Return the output of a choice."""


class FixedResolver:
    """A resolver that always computes the option with a given index."""

    def __init__(self, index: int) -> None:
        self._index = index

    def __call__(self, choice: Choice, inputs: types.Nest, training: bool | None) -> Any:
        return choice.branch(self._index, inputs)


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
    """Return the index of the option that an architecture chooses, by label; 0 if it is missing.

    Raises:
        errors.ConfigValueError: If the architecture names an unknown option.
    """
    picks = {}
    for label, options in space_of(model).items():
        given = arch.get(label, options[0])
        same = [i for i, option in enumerate(options) if architecture.is_same_option(option, given)]
        if not same:
            raise errors.ConfigValueError(
                f"`{label}` is {given!r}; expected one of {', '.join(map(str, options))}."
            )
        picks[label] = same[0]
    return picks


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
                f"The {type(choice).__name__} {choice.label!r} is not supported by this search; "
                f"supported are {', '.join(kind.__name__ for kind in makers)}."
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
    return _replace(model, input_choice.InputChoice, init_fn, modules)


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
            choice.set_resolver(_Replacement(module))
            modules.append((choice.label, module))
    return modules


class _Replacement:
    def __init__(self, module: Callable[[Any], Any]) -> None:
        self._module = module

    def __call__(self, choice: Choice, inputs: types.Nest, training: bool | None) -> Any:
        return self._module(inputs)


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
