import html
import json

from official_lite.reports import markup
from official_lite.reports.markup import Markup, json_script, tag

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


def test_html_tag_builder_escapes_text_but_not_markup_objects() -> None:
    shown = tag("p", "a < b & c", Markup("<b>d</b>"), None, [1, 2.5])
    assert shown == "<p>a &lt; b &amp; c<b>d</b>12.5</p>"
    shown = tag("input", class_="a", data_run=0, checked=True, title=None, hidden=False)
    assert shown == '<input class="a" data-run="0" checked>'


def test_html_tags_in_text_and_attributes_are_escaped() -> None:
    shown = tag("p", HOSTILE, title=f'"{HOSTILE}')
    assert shown.count("<") == 2
    assert html.unescape(shown).count(HOSTILE) == 2


def test_json_data_cannot_close_its_script_element() -> None:
    shown = json_script({"name": HOSTILE})
    inner = shown.removeprefix('<script type="application/json">').removesuffix("</script>")
    assert "<" not in inner
    assert json.loads(inner) == {"name": HOSTILE}


def test_surrogate_control_and_bidi_characters_are_escaped() -> None:
    shown = tag("p", "\ud800 \x1b \u202e")
    assert shown == "<p>\\ud800 \\x1b \\u202e</p>"
    assert shown.encode("utf-8")


def _table(cells: list[list], **fields) -> str:
    rows = [markup.Row(head=f"row {n}", cells=each) for n, each in enumerate(cells)]
    columns = ["", *(f"column {n}" for n in range(len(cells[0])))]
    return markup.table(caption="all", columns=columns, rows=rows, **fields)


def test_html_table_has_header_scopes_and_unrounded_sort_values() -> None:
    shown = _table([[0.123456789, "<b>"], [None, "c"]], is_sortable=True)
    assert shown.count('scope="col"') == 3
    assert shown.count('scope="row"') == 2
    assert "<caption><span>all</span></caption>" in shown
    assert '<td class="text">&lt;b&gt;</td>' in shown
    assert 'data-value="0.123456789">0.12346</td>' in shown
    assert 'data-value="">–</td>' in shown


def test_report_page_omits_missing_values_and_formats_durations() -> None:
    assert "seed" not in markup.facts({"seed": None, "step": 3})
    assert [markup.duration(s) for s in (None, 1.25, 3661)] == [None, "1.2 s", "1:01:01"]
    assert markup.when(None) is None
