"""Tests of `python -m official_lite.tools tune`."""

import argparse
import json
import multiprocessing
import os
import time

import pytest

from official_lite.common import errors
from official_lite.tools import __main__ as tools
from official_lite.tools import trial_training, tune

SMALL = "--set=task.model.units=[4]"


SIZES = {
    "4GB": 4 * 10**9,
    "1.5 g": 15 * 10**8,
    "900MB": 9 * 10**8,
    "7": 7,
}


def test_memory_sizes_are_parsed_with_or_without_units() -> None:
    assert {text: tune._bytes(text) for text in SIZES} == SIZES
    for text in ("", "GB", "4 apples", "-1GB"):
        with pytest.raises(argparse.ArgumentTypeError):
            tune._bytes(text)


def test_tune_lr_prints_the_sweep_and_a_suggestion_as_json(capsys):
    arguments = ["tune", "lr", "vision/digits_mlp", SMALL, "--steps=40"]
    assert tools.main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["learning_rates"]) == len(found["losses"]) <= 40
    assert found["learning_rates"][0] == pytest.approx(1e-7)
    assert set(found) == {"learning_rates", "losses", "smoothed", "has_diverged", "suggestion"}


@pytest.mark.slow
def test_tune_batch_size_doubles_the_size_up_to_the_maximum(capsys):
    arguments = ["vision/digits_mlp", SMALL, "--max_batch_size=200"]
    assert tools.main(["tune", "batch_size", *arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["largest"] == 200
    assert [trial["batch_size"] for trial in found["trials"]] == [64, 128, 200]
    assert tools.main(["tune", "batch_size", *arguments, "--memory_limit=1MB"]) == 1
    assert "Even a batch size of 1 does not fit into 0.001 GB" in capsys.readouterr().err


def test_batch_size_search_finds_the_largest_size_to_within_one_eighth() -> None:
    for largest in (0, 1, 5, 63, 64, 100, 1000, 4095, 5000):
        tried = []

        def fits(size, largest=largest, tried=tried):
            tried.append(size)
            return size <= largest

        found = tune.find_largest(fits, start=64, most=4096)
        assert found <= largest
        assert min(largest, 4096) - found <= max(largest > 0, found // 8)
        assert len(set(tried)) == len(tried) <= 12


def test_searched_batch_sizes_are_multiples_of_the_required_unit():
    tried = []

    def fits(size):
        tried.append(size)
        return size <= 75

    assert tune.find_largest(fits, start=12, most=10**6, unit=lambda: 6) == 72
    assert not [size for size in tried if size % 6]


def test_batch_size_search_reaches_the_largest_allowed_multiple_of_the_unit() -> None:
    for most in (96, 100, 128, 150):
        tried = []

        def fits(size, tried=tried):
            tried.append(size)
            return True

        found = tune.find_largest(fits, start=32, most=most, unit=lambda: 4)
        assert found == max(tried) == most // 4 * 4


def _act(args, size):
    """Imitate `probe`, or fail in the way that `args` specifies for this size."""
    if size >= args.hungry_from:
        kept = [b"x" * 10**8 for _ in range(15)]
        time.sleep(300)
        del kept
    if size >= args.slow_from:
        time.sleep(300)
    if size >= args.killed_from:
        os.kill(os.getpid(), 9)
    if size >= args.wrong_from:
        return trial_training.Probe(problem="DataError: no data")
    return trial_training.Probe(examples_per_second=10.0 * size, memory=10**8, unit=1)


def _run_act(sender, args, size):
    sender.send(_act(args, size))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("hungry_from", "above the limit"),
        pytest.param("slow_from", "not finished in 20 s", marks=pytest.mark.slow),
        ("killed_from", "killed by SIGKILL"),
        ("wrong_from", "DataError: no data"),
    ],
)
def test_batch_size_that_fails_is_reported_with_the_reason(monkeypatch, what, why):
    monkeypatch.setattr(tune, "_run_probe", _run_act)
    never = dict.fromkeys(("hungry_from", "slow_from", "killed_from", "wrong_from"), 10**9)
    args = argparse.Namespace(**{**never, what: 2})
    timeout = 20.0 if what == "slow_from" else 300.0
    found = tune.search_sizes(args, start=1, most=64, memory_limit=12 * 10**8, timeout_secs=timeout)
    assert (found.largest, found.fastest) == (1, 1)
    assert found.trials[-1].batch_size == 2
    assert found.trials[-1].result == why
    assert "The largest batch that fits into" in found.describe()


def test_batch_size_search_raises_if_training_fails_at_the_first_size(monkeypatch):
    monkeypatch.setattr(tune, "_run_probe", _run_act)
    never = dict.fromkeys(("hungry_from", "slow_from", "killed_from"), 10**9)
    args = argparse.Namespace(**never, wrong_from=1)
    with pytest.raises(errors.ConfigValueError, match="Can't train with batches of 4: DataError"):
        tune.search_sizes(args, start=4, most=64)
    with pytest.raises(errors.ConfigValueError, match="global_batch_size` is 0"):
        tune.search_sizes(args, start=0, most=64)


def test_config_error_at_a_larger_batch_size_raises_instead_of_ending_the_search(monkeypatch):
    def judge(sender, args, size):
        is_wrong = size > 4
        sender.send(
            trial_training.Probe(problem="wrong" if is_wrong else "", is_of_config=is_wrong)
        )

    monkeypatch.setattr(tune, "_run_probe", judge)
    monkeypatch.setattr(tune, "_context", lambda: multiprocessing.get_context("fork"))
    with pytest.raises(errors.ConfigValueError, match="Can't train with batches of 8: wrong"):
        tune.search_sizes(argparse.Namespace(), start=4, most=64)
