"""Our samplers and storages pass Optuna's own test suites."""

import pathlib
from collections.abc import Callable

import optuna
import pytest
from optuna.testing import pytest_samplers, pytest_storages

from official_lite.search import samplers, search_config, storage

Create = Callable[[], optuna.samplers.BaseSampler]


def _seeded(create: Callable[..., optuna.samplers.BaseSampler]) -> Create:
    return lambda: samplers.SeededSampler(create, 0)


class TestEvolution(
    pytest_samplers.BasicSamplerTestCase, pytest_samplers.SingleOnlySamplerTestCase
):
    """Tests of the evolution sampler with a small population, so that trials soon have parents."""

    @pytest.fixture
    def sampler(self) -> Create:
        return lambda: samplers.RegularizedEvolutionSampler(2, 1, seed=0)


class TestSeededTpe(pytest_samplers.BasicSamplerTestCase):
    @pytest.fixture
    def sampler(self) -> Create:
        return _seeded(optuna.samplers.TPESampler)


class TestSeededMultivariateTpe(pytest_samplers.RelativeSamplerTestCase):
    @pytest.fixture
    def sampler(self) -> Create:
        def create(seed: int) -> optuna.samplers.TPESampler:
            return optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=0)

        return _seeded(create)


class TestJournalOfAStudy(pytest_storages.StorageTestCase):
    @pytest.fixture
    def storage(self, tmp_path: pathlib.Path) -> optuna.storages.BaseStorage:
        return storage._open_storage(search_config.SearchConfig(), str(tmp_path))
