from official_lite.common import escapes


def test_control_characters_are_shown_and_do_nothing() -> None:
    assert (
        escapes.escape_controls("\x1b[2Jloss\r\x9b1m\u202e\0") == r"\x1b[2Jloss\r\x9b1m\u202e\x00"
    )


def test_other_text_stays() -> None:
    text = "two lines:\n\tgröße ≤ 5 µs 模型"
    assert escapes.escape_controls(text) == text
