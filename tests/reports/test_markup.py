import html
import json

from official_lite.reports.markup import Markup, json_script, tag

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


def test_text_is_escaped_and_markup_is_not() -> None:
    shown = tag("p", "a < b & c", Markup("<b>d</b>"), None, [1, 2.5])
    assert shown == "<p>a &lt; b &amp; c<b>d</b>12.5</p>"


def test_nothing_gets_out_of_text_or_attribute() -> None:
    shown = tag("p", HOSTILE, title=f'"{HOSTILE}')
    assert shown.count("<") == 2
    assert html.unescape(shown).count(HOSTILE) == 2


def test_attributes_are_named_as_in_html() -> None:
    shown = tag("input", class_="a", data_run=0, checked=True, title=None, hidden=False)
    assert shown == '<input class="a" data-run="0" checked>'


def test_data_cannot_end_its_element() -> None:
    shown = json_script({"name": HOSTILE})
    inner = shown.removeprefix('<script type="application/json">').removesuffix("</script>")
    assert "<" not in inner
    assert json.loads(inner) == {"name": HOSTILE}


def test_what_no_file_can_hold_is_written_out() -> None:
    shown = tag("p", "\ud800 \x1b \u202e")
    assert shown == "<p>\\ud800 \\x1b \\u202e</p>"
    assert shown.encode("utf-8")
