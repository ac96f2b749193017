"""Config that selects one of several alternatives by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from official_lite.common import errors, suggestions
from official_lite.modeling.hyperparams import base_config
from official_lite.modeling.hyperparams.overrides import Cursor


@dataclasses.dataclass
class OneOfConfig(base_config.Config):
    """Config that holds alternatives in its fields and selects one of them by its field `type`.

    ::

        @dataclasses.dataclass
        class WarmupConfig(OneOfConfig):
            type: str | None = None
            linear: LinearWarmupConfig = dataclasses.field(default_factory=LinearWarmupConfig)

        WarmupConfig({"type": "linear", "linear": {"warmup_steps": 500}}).get()

    Only the selected alternative is exported and validated. An override that sets an alternative
    that is not selected would have no effect, so it raises an error.

    Attributes:
      type: The name of the selected field; None or an empty string selects nothing.
    """

    type: str | None = None

    def get(self) -> Any:  # type: ignore[override]  # the signature of the Model Garden
        """Return the selected alternative, or None."""
        return self.__dict__[self.type] if self.type else None

    def __setattr__(self, key: str, value: object) -> None:
        super().__setattr__(key, value)
        if key == "type":
            self._check_type(self._cursor().key("type"))

    def _merge(self, params: Mapping[str, Any], cursor: Cursor) -> None:
        super()._merge(params, cursor)
        if "type" in params:
            self._check_type(cursor.key("type", params))
        for key in params:
            if key not in ("type", self.type):
                raise self._no_effect(key, cursor.key("type"), cursor.key(key, params))

    def choices(self) -> str:
        """Return the alternatives as a sentence for an error message."""
        return f"Choose one of {', '.join(f'`{name}`' for name in sorted(self._alternatives()))}."

    @classmethod
    def _explain_mismatch(cls, value: object, path: str) -> str:
        if isinstance(value, str) and value in cls()._alternatives():
            return f" To choose `{value}`, set `{path}.type`."
        return f" Set `{path}.type` and the fields of that choice. {cls().choices()}"

    def _active_items(self) -> Iterator[tuple[str, Any]]:
        return ((key, value) for key, value in self._items() if key in ("type", self.type))

    def _check_type(self, cursor: Cursor) -> None:
        alternatives = self._alternatives()
        if self.type and self.type not in alternatives:
            raise errors.ConfigValueError(
                f"{cursor}: {type(self).__name__} has no alternative {self.type!r}. "
                f"{suggestions.did_you_mean(self.type, alternatives)}".rstrip()
            )

    def _no_effect(self, key: str, selector: Cursor, cursor: Cursor) -> errors.ConfigValueError:
        selected = f"is {self.type!r}" if self.type else "selects nothing"
        return errors.ConfigValueError(
            f"{cursor} would have no effect, because `{selector.path}` {selected}. Set "
            f"`{selector.path}` to {key!r} first, or in the same override."
        )

    def _alternatives(self) -> set[str]:
        # While the dataclass is being initialized, `type` is set before the alternatives.
        declared = {field.name for field in dataclasses.fields(self)}
        return (declared | set(self._keys())) - {"type"}
