"""A stand-in for `tensorflow_datasets`, for tests of reading through TFDS."""

import sys
import types
from typing import Any

import pytest
import tensorflow as tf


class FakeTfds(types.ModuleType):
    """A module with one dataset, whose split `train` has two files.

    Attributes:
        loaded: The arguments of the last call of `load`.
    """

    ReadConfig = types.SimpleNamespace
    decode = types.SimpleNamespace(SkipDecoding=lambda: "skipped")

    def __init__(self, dataset: tf.data.Dataset) -> None:
        super().__init__("tensorflow_datasets")
        self._dataset = dataset
        self.loaded: dict[str, Any] = {}

    def builder(self, name: str, **kwargs: Any) -> Any:
        split = types.SimpleNamespace(file_instructions=["file0", "file1"])
        return types.SimpleNamespace(info=types.SimpleNamespace(splits={"train": split}))

    def load(self, **kwargs: Any) -> tf.data.Dataset:
        self.loaded = kwargs
        return self._dataset


def install(monkeypatch: pytest.MonkeyPatch, dataset: tf.data.Dataset) -> FakeTfds:
    """Let `import tensorflow_datasets` return the stand-in until the test ends."""
    fake = FakeTfds(dataset)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", fake)
    return fake
