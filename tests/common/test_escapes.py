import pytest

from official_lite.common import escapes


def test_control_characters_are_shown_and_do_nothing() -> None:
    assert (
        escapes.escape_controls("\x1b[2Jloss\r\x9b1m\u202e\0") == r"\x1b[2Jloss\r\x9b1m\u202e\x00"
    )


def test_other_text_stays() -> None:
    text = "two lines:\n\tgröße ≤ 5 µs 模型"
    assert escapes.escape_controls(text) == text


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("postgresql://me:se@cr:et@host/db", "postgresql://me:***@host/db"),
        ("https://:secret@host:80/a", "https://:***@host:80/a"),
        ("--set=x=mysql://me:secret@host", "--set=x=mysql://me:***@host"),
        ("https://host:80/a@b", "https://host:80/a@b"),
        ("mysql://me@host/db", "mysql://me@host/db"),
    ],
)
def test_passwords_of_urls_are_masked(url: str, masked: str) -> None:
    assert escapes.mask_passwords(f"a {url} b") == f"a {masked} b"
