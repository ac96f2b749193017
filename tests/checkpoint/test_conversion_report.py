from official_lite.checkpoint.saved_graph import ConversionReport, Leftover, Match


def match(key_shape: tuple[int, ...]) -> Match:
    return Match(variable="dense/kernel", variable_shape=(2, 3), key="k", key_shape=key_shape)


def test_report_is_complete_only_if_nothing_is_left() -> None:
    leftover = (Leftover(name="x", shape=(1,)),)
    whole = ConversionReport(checkpoint="ckpt-1", matched=(match((2, 3)),))
    assert whole.is_complete
    assert not ConversionReport(checkpoint="ckpt-1", mismatched=(match((3, 2)),)).is_complete
    assert not ConversionReport(checkpoint="ckpt-1", ambiguous=leftover).is_complete
    assert not ConversionReport(checkpoint="ckpt-1", missing=leftover).is_complete
    assert not ConversionReport(checkpoint="ckpt-1", unexpected=leftover).is_complete


def test_report_reads_as_text() -> None:
    report = ConversionReport(
        checkpoint="ckpt-1",
        matched=(match((2, 3)),),
        mismatched=(match((3, 2)),),
        missing=(Leftover(name="head/bias", shape=(3,), candidates=("a", "b", "c", "d")),),
    )
    assert str(report).splitlines() == [
        "ckpt-1: 1 variables matched",
        "  with a different shape (1):",
        "    dense/kernel [2, 3] <- k [3, 2]",
        "  missing from the checkpoint (1):",
        "    head/bias [3] (might be a, b, c, …)",
    ]


def test_match_of_equal_shapes_shows_the_shape_once() -> None:
    assert str(match((2, 3))) == "dense/kernel [2, 3] <- k"
