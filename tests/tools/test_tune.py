"""`python -m official_lite.tools tune`."""

import argparse
import json

import pytest

from official_lite.tools import __main__ as tools
from official_lite.tools import tune

SMALL = "--set=task.model.units=[4]"


@pytest.mark.parametrize(
    ("text", "size"), [("4GB", 4 * 10**9), ("1.5 g", 15 * 10**8), ("900MB", 9 * 10**8), ("7", 7)]
)
def test_sizes_of_memory(text, size):
    assert tune._bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "4 apples", "-1GB"])
def test_what_is_no_size(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is not a size"):
        tune._bytes(text)


def test_learning_rate_is_suggested(capsys):
    arguments = ["tune", "lr", "vision/digits_mlp", SMALL, "--steps=40"]
    assert tools.main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["learning_rates"]) == len(found["losses"]) <= 40
    assert found["learning_rates"][0] == pytest.approx(1e-7)
    assert set(found) == {"learning_rates", "losses", "smoothed", "has_diverged", "suggestion"}
    assert tools.main([*arguments, "--steps=2"]) == 2


@pytest.mark.slow
def test_batch_size_is_found_in_processes_of_their_own(capsys):
    arguments = ["vision/digits_mlp", SMALL, "--max_batch_size=200"]
    assert tools.main(["tune", "batch_size", *arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["largest"] == 200
    assert [trial["batch_size"] for trial in found["trials"]] == [64, 128, 200]
    assert tools.main(["tune", "batch_size", *arguments, "--memory_limit=1MB"]) == 1
    assert "No batch fits into 0.001 GB, not even 1" in capsys.readouterr().err
