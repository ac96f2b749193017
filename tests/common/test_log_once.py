from official_lite.common import terminal


def test_each_text_is_logged_once(caplog) -> None:
    for name in ("first", "second", "first"):
        terminal.warn_once("The %s of two.", name)
    assert [record.getMessage() for record in caplog.records] == [
        "The first of two.",
        "The second of two.",
    ]
