from official_lite.porting import keras_changes, symbol_map


def test_keras_has_all_that_takes_the_place_of_something() -> None:
    names = {*keras_changes.RENAMED.values(), *keras_changes.BACKEND_TO_OPS.values()}
    ops = {new for new, _ in keras_changes.TF_TO_OPS.values()}
    names |= {op if op.startswith("keras.") else f"keras.ops.{op}" for op in ops}
    assert [name for name in sorted(names) if symbol_map.missing_in_keras(name)] == []


def test_nothing_that_keras_has_is_called_gone() -> None:
    assert [name for name in keras_changes.ADVICE if not symbol_map.missing_in_keras(name)] == []
