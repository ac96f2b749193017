"""Descriptions of a checkpoint's origin: the optimizer class and the paths of the variables.

TensorFlow restores the variables of an optimizer by position. It silently restores the variables of
Adam into AdamW, or the variables of one layer into another of the same shape. This module therefore
compares the descriptions before a restore.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_lite.common import errors, keras_variables

__all__ = ["describe", "require_same", "warn_of_inexact_state"]

# A longer list of variables is represented only by its checksum.
_MAX_LISTED = 1000

_WAY_OUT = (
    "To resume from it, use the config it was saved with (`params.yaml` of the run). To start a "
    "new run from its weights, use another directory and set `task.init_checkpoint`."
)


def describe(
    model: keras.Model | tf.Module | None, optimizer: keras.optimizers.Optimizer | None
) -> dict[str, Any]:
    """Return a JSON-serializable description of a model and an optimizer.

    Args:
        model: A Keras model that has its variables. Anything else is left out.
        optimizer: A Keras optimizer that has its variables. Anything else is left out.
    """
    described: dict[str, Any] = {}
    # Prefer the weights, because the variables of metrics change.
    weights = _variables(model, "weights") or _variables(model, "variables")
    if weights:
        described["model"] = _listing(weights)
    if variables := _variables(optimizer, "variables"):
        classes = [type(each).__name__ for each in _with_inner(optimizer)]
        described["optimizer"] = {"class": " of ".join(classes), **_listing(variables)}
    return described


def require_same(saved: Mapping[str, Any], current: Mapping[str, Any], path: str) -> None:
    """Check that a checkpoint is restored into the objects that it was saved from.

    Different shapes are left to TensorFlow, whose error names the variable. Layers may have been
    renamed, as long as their order is unchanged.

    Args:
        saved: The description in the commit file.
        current: The description of the run.
        path: The checkpoint, for the error message.

    Raises:
        errors.CheckpointError: The checkpoint was saved with another optimizer, or with another
            number or order of variables.
    """
    was, now = saved.get("optimizer"), current.get("optimizer")
    if was and now and was["class"] != now["class"]:
        raise errors.CheckpointError(
            f"{path} was saved with the optimizer {was['class']}; this run uses {now['class']}. "
            f"{_WAY_OUT}"
        )
    for part in ("optimizer", "model"):
        if saved.get(part) and current.get(part):
            _require_same_order(part, saved[part], current[part], path)


def warn_of_inexact_state(saved: Mapping[str, Any], current: Mapping[str, Any], path: str) -> None:
    """Warn about changes that prevent the resumed training from being bit-exact.

    Args:
        saved: The description in the commit file.
        current: The description of the run.
        path: The checkpoint, for the warning.
    """
    was, now = _circumstances(saved), _circumstances(current)
    if was.get("virtual replicas") and was.get("virtual replicas") == now.get("virtual replicas"):
        # Their results do not depend on the number of replicas.
        if was.pop("replicas", None) != now.get("replicas"):
            logging.info(
                "Training resumes from %s on %s instead of %s replicas.",
                path,
                current["num_replicas"],
                saved["num_replicas"],
            )
    changes = [
        f"{name} {was[name]} → {now[name]}"
        for name in was.keys() & now.keys()
        if was[name] != now[name]
    ]
    if changes:
        logging.warning(
            "Training resumes from %s, but the results will not be bit for bit the same: %s.",
            path,
            ", ".join(sorted(changes)),
        )


def _circumstances(description: Mapping[str, Any]) -> dict[str, Any]:
    named = {
        "replicas": description.get("num_replicas"),
        "virtual replicas": description.get("virtual_replicas"),
        "global batch size": description.get("global_batch_size"),
        **description.get("versions", {}),
    }
    return {name: value for name, value in named.items() if value is not None}


def _require_same_order(
    part: str, was: Mapping[str, Any], now: Mapping[str, Any], path: str
) -> None:
    if was.get("sha256") == now.get("sha256"):
        return
    if was.get("count") != now.get("count"):
        raise errors.CheckpointError(
            f"{path} contains {was.get('count')} variables of the {part}, but this run has "
            f"{now.get('count')}. {_difference(was, now)}{_WAY_OUT}"
        )
    old, new = _paths(was), _paths(now)
    if old and old != new and sorted(old) == sorted(new):
        moved = next(i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b)
        raise errors.CheckpointError(
            f"{path} contains the variables of the {part} in a different order: `{old[moved]}` "
            f"would be restored into `{new[moved]}`. {_WAY_OUT}"
        )
    logging.warning("%s was saved with different variable names of the %s.", path, part)


def _difference(was: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    old, new = _paths(was), _paths(now)
    if not old or not new:
        return ""
    gone = [f"`{path}` is missing now" for path in old if path not in new]
    come = [f"`{path}` is new" for path in new if path not in old]
    return "".join(f"{each}. " for each in [*gone[:2], *come[:2]])


def _listing(variables: Iterable[Any]) -> dict[str, Any]:
    listed = [[_plain(variable), list(variable.shape)] for variable in variables]
    text = json.dumps(listed, separators=(",", ":"))
    listing = {"count": len(listed), "sha256": hashlib.sha256(text.encode()).hexdigest()}
    return listing if len(listed) > _MAX_LISTED else {**listing, "variables": listed}


def _paths(listing: Mapping[str, Any]) -> list[str]:
    return [path for path, _ in listing.get("variables", ())]


def _plain(variable: keras.Variable | tf.Variable) -> str:
    """Return the path of a variable without the numbers that Keras appends to repeated names."""
    path = keras_variables.path_of(variable)
    return re.sub(r"_\d+(?=[_/:]|$)", "", path)


def _variables(item: object, attribute: str) -> list[Any]:
    variables = getattr(item, attribute, None)
    return list(variables) if isinstance(variables, list | tuple) else []


def _with_inner(optimizer: keras.optimizers.Optimizer | None) -> Iterator[Any]:
    while optimizer is not None:
        yield optimizer
        optimizer = getattr(optimizer, "inner_optimizer", None)
