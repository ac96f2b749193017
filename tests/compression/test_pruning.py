import keras
import numpy as np
import pytest

from official_lite.common import errors
from official_lite.compression import configs, pruning
from official_lite.tools import __main__ as tools

PRUNING = {"final_sparsity": 0.8, "begin_step": 4, "end_step": 12, "frequency": 4}
# Its moments and decay would move weights that have no gradient.
ADAMW = {"optimizer": {"type": "adamw", "adamw": {"weight_decay_rate": 0.1}}}


def _kernels(weights):
    return [weight for weight in weights if weight.ndim > 1]


def _validate(fields):
    config = configs.CompressionConfig()
    config.override(fields)
    config.validate()


def _assert_sparse(weights, sparsity=0.8):
    found = [float(np.mean(kernel == 0)) for kernel in _kernels(weights)]
    np.testing.assert_allclose(found, sparsity, atol=0.005)


@pytest.mark.parametrize("execution", ["graph", "xla", "xla_loop"])
def test_kernels_stay_sparse_after_the_schedule(train_digits, tmp_path, execution) -> None:
    pruned = {"pruning": PRUNING}
    _assert_sparse(train_digits(tmp_path, pruned, execution=execution, optimizer_config=ADAMW))


@pytest.mark.parametrize(
    "trainer",
    [
        {"grad_accum_steps": 2},
        {"virtual_replicas": 2},
        {"optimizer_config": {"optimizer": {"type": "muon"}}},
    ],
    ids=lambda trainer: next(iter(trainer)),
)
def test_kernels_stay_sparse_however_they_are_updated(train_digits, tmp_path, trainer) -> None:
    _assert_sparse(train_digits(tmp_path, {"pruning": PRUNING}, **trainer))


def test_sparsity_follows_the_polynomial() -> None:
    config = configs.PruningConfig(
        initial_sparsity=0.2, final_sparsity=0.8, begin_step=10, end_step=30, frequency=8
    )
    assert pruning.update_steps(config) == [10, 18, 26, 30]
    sparsities = [pruning.sparsity_at(step, config) for step in (9, 10, 20, 30, 40)]
    np.testing.assert_allclose(sparsities, [0.0, 0.2, 0.8 - 0.6 / 8, 0.8, 0.8])


def test_resumed_run_equals_the_unbroken_one(train_digits, tmp_path) -> None:
    pruned = {"pruning": PRUNING}
    unbroken = train_digits(tmp_path / "unbroken", pruned)
    # Between two updates of the masks, and at one.
    for step in (6, 8):
        train_digits(tmp_path / f"at_{step}", pruned, train_steps=step)
        resumed = train_digits(tmp_path / f"at_{step}", pruned)
        for one, other in zip(unbroken, resumed, strict=True):
            np.testing.assert_array_equal(other, one)


def test_two_replicas_prune_what_one_does(train_digits, tmp_path, two_replicas) -> None:
    pruned = {"pruning": PRUNING}
    one = train_digits(tmp_path / "one", pruned)
    two = train_digits(tmp_path / "two", pruned, strategy=two_replicas)
    for mine, theirs in zip(one, two, strict=True):
        np.testing.assert_allclose(theirs, mine, atol=1e-5)


def test_blocks_have_their_zeros(train_digits, tmp_path) -> None:
    pruned = {"pruning": {**PRUNING, "final_sparsity": 0.5, "sparsity_m_by_n": [2, 4]}}
    weights = train_digits(tmp_path, pruned)
    for kernel in _kernels(weights):
        zeros = (kernel == 0).reshape(-1, 4, kernel.shape[-1]).sum(axis=1)
        assert zeros.min() == zeros.max() == 2


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_exported_average_is_sparse_and_plain(train_digits, tmp_path) -> None:
    ema = {"ema": {"average_decay": 0.9}}
    train_digits(tmp_path, {"pruning": PRUNING}, optimizer_config=ema)
    code = tools.main(
        [
            *("export", str(tmp_path), "--format=keras", "--random_inputs"),
            "--experiment=vision/digits_mlp",
        ]
    )
    assert code == 0
    exported = keras.models.load_model(tmp_path / "export" / "20.keras", compile=False)
    weights = [weight.numpy() for weight in exported.weights]
    assert len(weights) == 4
    _assert_sparse(weights)


def test_zeros_of_another_run_are_kept(train_digits, tmp_path) -> None:
    pruned = train_digits(tmp_path / "pruned", {"pruning": PRUNING})
    tuned = train_digits(
        tmp_path / "tuned",
        {"pruning": {"schedule": "existing_zeros"}},
        task={"init_checkpoint": str(tmp_path / "pruned")},
    )
    _assert_sparse(tuned)
    assert not np.array_equal(tuned[0], pruned[0])


def test_patterns_choose_the_layers(train_digits, tmp_path) -> None:
    pruned = {"pruning": {**PRUNING, "exclude": ["logits$"]}}
    weights = train_digits(tmp_path, pruned)
    dense, sparse = sorted(_kernels(weights), key=lambda kernel: float(np.mean(kernel == 0)))
    assert np.all(dense)
    assert np.mean(sparse == 0) > 0.79


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"final_sparsity": 1.0}, "`final_sparsity` is 1.0"),
        ({"end_step": 0}, "`end_step` is 0"),
        ({"sparsity_m_by_n": [2, 4], "final_sparsity": 0.8}, "expected 0.5, the share"),
        ({"schedule": "polynom"}, "polynomial"),
        ({"pruning_schedule": "PolynomialDecay"}, "`schedule` to `polynomial`"),
    ],
)
def test_config_that_can_not_be_meant_is_refused(fields, message) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        _validate({"pruning": fields})
