"""Report pages in a real browser, which executes their script."""

import pathlib
from collections.abc import Iterator

import pytest

from official_lite import search
from official_lite.common import errors
from official_lite.nas import architecture
from official_lite.reports import page
from tests import chromium, made_runs
from tests.search import toys

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
WIDTHS = (1280, 390)


@pytest.fixture(scope="module")
def browser() -> Iterator[chromium.Browser]:
    with chromium.started() as browser:
        yield browser


def _write(tmp_path: pathlib.Path, *directories: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "page.html"
    path.write_text(page.build_page([str(one) for one in directories]), encoding="utf-8")
    return path


def _require_soundness(tab: chromium.Tab, width: int) -> None:
    assert tab.problems == []
    # Not `innerWidth`, which grows on a phone if the content is too wide.
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate(
        "[...document.querySelectorAll('.plot')].every(one => !one.clientWidth ||"
        " one.querySelector('svg title').textContent)"
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_report_of_runs_draws_curves_and_reacts_to_its_controls(browser, tmp_path, width) -> None:
    runs = [made_runs.make_run(tmp_path / name, offset=n / 10) for n, name in enumerate("ab")]
    tab = browser.open(_write(tmp_path, *runs), width)
    _require_soundness(tab, width)
    lines = "document.querySelectorAll('#curves .line')"
    assert tab.evaluate(f"{lines}.length") == 2 * (2 + 2 + 1)

    before = tab.evaluate(f"{lines}[0].getAttribute('d')")
    tab.evaluate(
        "{const slider = document.querySelector('[data-smoothing]');"
        "slider.value = 0.9; slider.dispatchEvent(new Event('input'));}"
    )
    assert tab.evaluate(f"{lines}[0].getAttribute('d')") != before
    tab.evaluate("document.querySelector('.chart .log').click()")
    tab.evaluate("document.querySelector('[data-run=\"0\"]').click()")
    assert tab.evaluate(f"{lines}.length") == 2 + 2 + 1

    tab.evaluate("document.querySelector('[data-clock]').click()")
    tab.point_at("#curves .plot svg")
    shown = tab.evaluate("document.querySelector('.tip').textContent")
    assert shown.startswith("minutes")
    assert "b, validation" in shown
    assert "a, validation" not in shown
    press = "dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight'}))"
    tab.evaluate(f"document.querySelector('#curves svg').{press}")
    assert tab.evaluate("document.querySelector('.tip').textContent") != shown
    _require_soundness(tab, width)


def test_study_page_sorts_trials_when_a_column_header_is_clicked(browser, tmp_path) -> None:
    width = WIDTHS[1]
    space = {**toys.SPACE, "trainer.optimizer_config.initial_learning_rate": ["a", "b"]}
    search.run_study(toys.curve, toys.config(space=space, num_trials=12), str(tmp_path / "study"))
    tab = browser.open(_write(tmp_path, tmp_path / "study"), width)
    _require_soundness(tab, width)
    assert tab.evaluate("document.querySelectorAll('#history .mark').length") >= 12
    values = (
        "[...document.querySelectorAll('#trials tbody tr')]"
        ".map(row => Number(row.cells[2].dataset.value))"
    )
    for direction in ("ascending", "descending"):
        tab.evaluate("document.querySelectorAll('#trials thead button')[2].click()")
        found = tab.evaluate(values)
        assert found == sorted(found, reverse=direction == "descending")
        sort = tab.evaluate("document.querySelectorAll('#trials th')[2].getAttribute('aria-sort')")
        assert sort == direction
    tab.point_at("#history .plot svg")
    assert "trial" in tab.evaluate("document.querySelector('#history .tip strong').textContent")
    _require_soundness(tab, width)


_TICKS = (
    "[...document.querySelectorAll('.plot')].map(plot => ["
    "plot.querySelectorAll('.ticks text[text-anchor=end]').length,"
    "plot.querySelectorAll('.ticks line').length])"
)


def test_every_chart_of_a_report_has_a_legend_and_axis_ticks(browser, tmp_path) -> None:
    width = WIDTHS[1]
    search.run_study(toys.curve, toys.config(num_trials=5), str(tmp_path / "study"))
    run = made_runs.make_run(tmp_path / "run")
    # The values span a range that contains only one round number.
    values = [0.4932, 0.5061, 0.51, 0.4991, 0.5044]
    made_runs.write_metrics(
        run,
        [
            {"step": 97 + 9 * n, "split": "train", "flat": value, "steep": 10.0 ** (n - 2) * 3}
            for n, value in enumerate(values)
        ],
    )
    tab = browser.open(_write(tmp_path, run, tmp_path / "study"), width)
    assert tab.evaluate(
        "[...document.querySelectorAll('.chart')]"
        ".every(chart => chart.querySelectorAll('.legend button').length > 0)"
    )
    assert all(min(numbers) >= 2 for numbers in tab.evaluate(_TICKS))
    tab.evaluate("document.querySelectorAll('.chart .log').forEach(button => button.click())")
    assert all(min(numbers) >= 2 for numbers in tab.evaluate(_TICKS))
    _require_soundness(tab, width)


def test_chart_tooltip_stays_within_the_browser_window(browser, tmp_path) -> None:
    width = WIDTHS[1]
    runs = [made_runs.make_run(tmp_path / f"run {n}") for n in range(6)]
    tab = browser.open(_write(tmp_path, *runs), width)
    shown = (
        "(() => { const box = document.querySelector('#curves .tip').getBoundingClientRect();"
        "return box.width > 0 && box.top >= 0 && box.left >= 0 && box.right <= innerWidth"
        "&& box.bottom <= innerHeight; })()"
    )
    for edge in ("start", "center", "end"):
        tab.evaluate(
            f"document.querySelector('#curves .chart').scrollIntoView({{block: '{edge}'}})"
        )
        for x in (0.2, 0.95):
            tab.evaluate(
                "(() => { const svg = document.querySelector('#curves svg');"
                "const box = svg.getBoundingClientRect();"
                "svg.dispatchEvent(new PointerEvent('pointermove',"
                f"{{clientX: box.x + {x} * box.width, clientY: box.y + 50}})); }})()"
            )
            assert tab.evaluate(shown), (edge, x)


def test_chart_zooms_by_mouse_and_keyboard(browser, tmp_path) -> None:
    width = WIDTHS[0]
    tab = browser.open(_write(tmp_path, made_runs.make_run(tmp_path / "run")), width)
    ticks = (
        "[...document.querySelectorAll('#curves .plot')[0]"
        ".querySelectorAll('.ticks text[text-anchor=middle]')].map(one => one.textContent)"
    )
    whole = tab.evaluate(ticks)
    assert "1000" in whole
    tab.drag("#curves .plot > svg", 0.4, 0.6)
    zoomed = tab.evaluate(ticks)
    assert 350 < int(zoomed[0]) < int(zoomed[-2]) < 700
    assert tab.evaluate("document.querySelector('.reset').hidden") is False
    # The other charts show all of their values.
    assert tab.evaluate("document.querySelectorAll('.reset:not([hidden])').length") == 1
    _require_soundness(tab, width)
    tab.double_click("#curves .plot > svg")
    assert tab.evaluate(ticks) == whole

    tab.evaluate("document.querySelector('#curves .plot > svg').focus()")
    for key in ("+", "+"):
        tab.press(key)
    assert 350 < int(tab.evaluate(ticks)[0]) < 700
    tab.press("ArrowRight")
    step = tab.evaluate("document.querySelector('.tip strong').textContent")
    assert 350 < int(step.removeprefix("step ")) < 700
    tab.press("-")
    tab.press("-")
    assert tab.evaluate(ticks) == whole
    tab.press("+")
    tab.press("Escape")
    assert tab.evaluate(ticks) == whole
    tab.drag("#curves .plot > svg", 0.4, 0.6)
    tab.evaluate("document.querySelector('.reset').click()")
    assert tab.evaluate(ticks) == whole
    assert tab.problems == []


def test_text_from_run_files_is_never_executed_as_script_in_a_report(browser, tmp_path) -> None:
    config = {"task": {HOSTILE: HOSTILE}}
    record = {"exit_reason": HOSTILE, "argv": [HOSTILE], "host": HOSTILE, "status": HOSTILE}
    # A directory name can't contain a slash.
    run = made_runs.make_run(tmp_path / HOSTILE.replace("/", "|"), config=config, record=record)
    made_runs.write_metrics(run, [{"step": n, "split": HOSTILE, HOSTILE: n} for n in (1, 2)])
    space = {HOSTILE: [HOSTILE, "b"]}
    probs = {HOSTILE: [0.5, 0.5]}
    architecture.write_arch(str(run), {HOSTILE: HOSTILE}, space=space, probs=probs)
    lines = [architecture.to_history_line(n, probs) for n in (1, 2)]
    (run / architecture.HISTORY_FILE).write_text("\n".join(lines) + "\n")
    tab = browser.open(_write(tmp_path, run))
    tab.point_at(".plot svg")
    _require_soundness(tab, WIDTHS[0])
    assert tab.evaluate("document.querySelectorAll('img').length") == 0
    assert tab.evaluate("document.querySelectorAll('script:not([type])').length") == 1
    assert HOSTILE in tab.evaluate("document.body.textContent")


def test_page_of_a_run_with_20000_reports_is_smaller_than_200_kb(tmp_path) -> None:
    run = made_runs.make_run(tmp_path / "a", num_reports=20_000)
    assert _write(tmp_path, run).stat().st_size < 200_000


def test_runs_with_the_same_name_are_distinguished_by_their_parent_directory(tmp_path) -> None:
    runs = [made_runs.make_run(tmp_path / name / "run") for name in "ab"]
    text = page.build_page([str(one) for one in runs])
    assert "<title>a/run · b/run</title>" in text
    with pytest.raises(errors.ConfigValueError, match="listed twice"):
        page.build_page([str(runs[0]), str(runs[0])])


def test_report_error_for_a_parent_directory_names_the_runs_inside(tmp_path) -> None:
    made_runs.make_run(tmp_path / "all" / "pretrain")
    with pytest.raises(errors.ConfigValueError, match=r"Found .*pretrain"):
        page.build_page([str(tmp_path / "all")])
    with pytest.raises(errors.ConfigValueError, match=r"Did you mean `.*all`"):
        page.build_page([str(tmp_path / "alll")])


def test_runs_and_studies_share_one_report_page_with_unique_element_ids(tmp_path) -> None:
    run = made_runs.make_run(tmp_path / "a")
    search.run_study(toys.parabola, toys.config(num_trials=2), str(tmp_path / "s"))
    text = page.build_page([str(run), str(tmp_path / "s")])
    assert "<h1>Run a</h1>" in text
    assert "<h1>Study s</h1>" in text
    ids = [part.partition('"')[0] for part in text.split(' id="')[1:]]
    assert len(set(ids)) == len(ids)
