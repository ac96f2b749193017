import dataclasses

from official_lite.tools import smoke_run


def test_smoke_run_learns_and_goes_on_from_its_checkpoint() -> None:
    result = smoke_run.run()
    assert (result.steps, result.resumed_from) == (150, 100)
    assert result.is_good
    assert not dataclasses.replace(result, resumed_from=0).is_good
    assert not dataclasses.replace(result, last_loss=result.first_loss).is_good
