"""Configs without declared fields, for values that are interpreted elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from official_lite.common import errors
from official_lite.modeling.hyperparams import base_config, field_types
from official_lite.modeling.hyperparams.overrides import Cursor


class FreeConfig(base_config.Config):
    """Config that accepts any keys at any time, with values nested in any way."""

    def _merge(self, params: Mapping[str, Any], cursor: Cursor) -> None:
        super()._merge(params, cursor._replace(strict=False))

    def _set(self, key: str, value: Any, current: Any, cursor: Cursor) -> None:
        self.__dict__[key] = _ANYTHING.convert(value, current, cursor)


class PluginConfig(FreeConfig):
    """Config with the `name` of a class and the arguments to call it with.

    An override that contains a `name` replaces the whole entry, so that no arguments of another
    class remain. An override without a `name` changes individual arguments.
    """

    def _merge(self, params: Mapping[str, Any], cursor: Cursor) -> None:
        if "name" in params:
            for key in self._keys():
                del self.__dict__[key]
        super()._merge(params, cursor)
        self._require_name(cursor)

    def _validate(self, cursor: Cursor) -> None:
        self._require_name(cursor)
        super()._validate(cursor)

    def _require_name(self, cursor: Cursor) -> None:
        name = self.get("name")
        if not isinstance(name, str) or not name:
            raise errors.ConfigValueError(
                f"{cursor}: `name` is {'missing' if name is None else repr(name)}; wanted a name, "
                "or a dict with the `name` and the arguments."
            )


_ANYTHING = field_types.AnyType(FreeConfig)
