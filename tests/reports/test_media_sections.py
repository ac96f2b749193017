import re

import numpy as np
import pytest

from official_lite import telemetry
from official_lite.reports import charts, media_sections, page
from official_lite.reports.markup import tag
from official_lite.run import run_reading
from tests import chromium, made_runs

STEPS = range(10, 101, 10)


@pytest.fixture
def run(tmp_path):
    run = made_runs.make_run(tmp_path / "run")
    with telemetry.TensorBoardWriter(run) as writer:
        for step in STEPS:
            writer.write(_record(step))
    return run


def _record(step) -> telemetry.Record:
    values = np.random.default_rng(step).normal(step, 1.0, 5000)
    return telemetry.Record(
        step=step,
        split="validation",
        values={},
        images={"digit": np.full([8, 8, 3], step, np.uint8)},
        histograms={"kernel": _histogram(values)},
    )


def _histogram(values) -> telemetry.Histogram:
    counts, edges = np.histogram(values, bins=200)
    return telemetry.Histogram(edges=edges, counts=counts.astype(float))


def _sections(run) -> dict[str, str]:
    found = media_sections.media([run_reading.read_run(str(run))])
    return {one.name: tag("div", one.content) for one in found}


def _steps(shown) -> list[int]:
    return [int(step) for step in re.findall(r"<figcaption>step (\d+)<", shown)]


def test_report_shows_images_of_the_first_the_last_and_some_intermediate_steps(run) -> None:
    shown = _sections(run)["images"]
    assert "validation/digit" in shown
    assert shown.count("data:image/png;base64,") == 6
    steps = _steps(shown)
    assert steps[0] == 10
    assert steps[-1] == 100
    assert steps == sorted(steps)


def test_report_omits_images_and_histograms_of_steps_that_a_recovery_discarded(tmp_path) -> None:
    run = made_runs.make_run(tmp_path / "run")
    with telemetry.TensorBoardWriter(run) as writer:
        for step in (10, 20, 30, 40):
            writer.write(_record(step))
        with telemetry.TensorBoardWriter(run, job="continuous_eval") as evaluation:
            evaluation.write(_record(30))
        writer.rewind(20)
        writer.write(_record(25))
    shown = _sections(run)
    assert _steps(shown["images"]) == [10, 20, 25, 30]
    assert "step 30" in shown["histograms"]
    assert "step 40" not in shown["histograms"]


def test_histogram_charts_show_the_quantiles_and_distribution_of_the_values(
    run, monkeypatch
) -> None:
    drawn = []
    monkeypatch.setattr(charts, "grid", lambda found: drawn.extend(found) or tag("div"))
    _sections(run)
    quantiles, distribution = drawn
    median = next(one for one in quantiles.series if one.name == "median")
    assert [step for step, _ in median.points] == list(STEPS)
    assert all(abs(value - step) < 0.1 for step, value in median.points)
    high = next(one for one in quantiles.series if one.name == "95 %")
    assert all(abs(value - step - 1.645) < 0.15 for step, value in high.points)
    assert [one.name for one in distribution.series] == ["step 10", "step 100"]
    for one in distribution.series:
        assert sum(share for _, share in one.points) == pytest.approx(1.0, abs=0.01)


def test_report_omits_the_earliest_images_if_the_byte_limit_is_exceeded(run, monkeypatch) -> None:
    size = len(re.findall(r"base64,([^\"]+)", _sections(run)["images"])[0]) * 3 // 4
    monkeypatch.setattr(media_sections, "_MAX_IMAGE_BYTES", 3 * size)
    shown = _sections(run)["images"]
    steps = [int(step) for step in re.findall(r"<figcaption>step (\d+)<", shown)]
    assert steps[-1] == 100
    assert 1 <= len(steps) <= 3
    assert f"({len(steps)} of the 6 of these steps)" in shown


def test_run_without_images_and_histograms_has_no_media_section(tmp_path) -> None:
    run = made_runs.make_run(tmp_path / "run")
    with telemetry.TensorBoardWriter(run) as writer:
        writer.write(telemetry.Record(step=1, split="train", values={"loss": 1.0}))
    assert _sections(run) == {}


def test_browser_renders_images_and_histograms_of_a_report(run, tmp_path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page.build_page([str(run)]))
    with chromium.started() as browser:
        tab = browser.open(path, 390)
        widths = "[...document.images].map(image => image.complete && image.naturalWidth)"
        assert tab.evaluate(widths) == [8] * 6
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        assert tab.evaluate("document.querySelectorAll('#histograms .line').length") == 5 + 2
        assert tab.problems == []


def test_unreadable_event_files_are_reported_and_readable_images_are_still_shown(run) -> None:
    (run / "train").mkdir()
    (run / "train" / "events.out.tfevents.1.v2").mkdir()
    [good] = (run / "validation").glob("events*")
    (run / "validation" / "events.out.tfevents.2.v2").write_bytes(good.read_bytes()[:-900])
    shown = _sections(run)["images"]
    assert "train/events.out.tfevents.1.v2 can&#x27;t be read" in shown
    assert "validation/digit" in shown
