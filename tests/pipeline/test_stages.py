import pytest

from official_lite import pipeline


def test_stage_without_work_is_named(context) -> None:
    class Empty(pipeline.Stage):
        pass

    ctx = context()
    assert Empty.view(ctx) is ctx
    with pytest.raises(NotImplementedError, match="Empty"):
        Empty(ctx)(ctx)
