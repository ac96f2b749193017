"""The listed mutants apply to the current code; `python -m benchmarks.mutation` runs them."""

import pytest

from benchmarks.mutation import __main__ as mutation
from benchmarks.mutation import mutants

ROOT = mutation.ROOT


def test_each_code_mutation_applies_to_the_current_code_and_names_existing_test_files() -> None:
    for mutant in mutants.MUTANTS:
        assert mutant.replacement != mutant.snippet, mutant
        compile(mutation.mutated(mutant, ROOT), mutant.module, "exec")
        assert mutant.tests, mutant
        assert [file for file in mutant.tests if not (ROOT / file).is_file()] == [], mutant


@pytest.mark.parametrize("source", ["", "a = 1\na = 1\n"])
def test_code_mutation_whose_original_code_does_not_occur_exactly_once_raises(
    tmp_path, source: str
) -> None:
    (tmp_path / "official_lite").mkdir()
    (tmp_path / "official_lite" / "module.py").write_text(source)
    mutant = mutants.Mutant("module.py", "another number", "a = 1", "a = 2", ("test_it.py",))
    count = source.count("a = 1")
    with pytest.raises(ValueError, match=f"another number` occurs {count} times"):
        mutation.mutated(mutant, tmp_path)


def test_every_excluded_code_mutation_has_a_module_and_a_reason() -> None:
    for excluded in mutants.EXCLUDED:
        assert (ROOT / "official_lite" / excluded.module).is_file()
        assert excluded.reason
