"""Sections with the images and histograms that a run has written to its event files."""

import base64
import collections
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from official_lite.common import errors, files
from official_lite.reports import charts, markup
from official_lite.reports.markup import Markup, tag
from official_lite.run.run_reading import Run, is_run

__all__ = ["media"]

# The number of steps to show for each tag: the first, the last and some in between.
_MAX_STEPS = 6
_MAX_IMAGES_PER_STEP = 4
# The maximum size of a run's images in bytes, so that the page is easy to send.
_MAX_IMAGE_BYTES = 6_000_000
_SMALL, _LARGE = 96, 400
_NUM_BINS = 30
_PNG = b"\x89PNG"

_Values = dict[str, dict[int, npt.NDArray[Any]]]
"""The tensors of one kind of summary, by tag and step."""


def media(runs: Sequence[Run]) -> list[markup.Section]:
    """Build a section with images and one with histograms, each only if there are any."""
    images: list[Markup] = []
    drawn: list[charts.Chart] = []
    for run in runs:
        found, problems = _read(run.model_dir)
        images += [markup.note(f"{run.name}: {problem}") for problem in problems]
        prefix = f"{run.name}, " if len(runs) > 1 else ""
        images += _images(prefix, found["images"])
        for name, histograms in found["histograms"].items():
            drawn += _histogram_charts(f"{prefix}{name}", histograms)
    sections = []
    if images:
        sections.append(markup.Section(name="images", title="Images", content=images))
    if drawn:
        content = charts.foldable_grid(drawn)
        sections.append(markup.Section(name="histograms", title="Histograms", content=content))
    return sections


def _read(model_dir: str) -> tuple[Mapping[str, _Values], list[str]]:
    """Return the images and histograms, and one line of text for each file that can't be read."""
    # Group the values by folder and job, because a restarted training job must not discard the
    # values of a separate evaluation job.
    sources: dict[tuple[str, str], dict[str, _Values]] = {}
    problems: list[str] = []
    for path in _event_files(model_dir):
        folder, name = os.path.split(path)
        job = re.sub(r".*tfevents\..*\.\d+", "", name)
        found = sources.setdefault((folder, job), {"images": {}, "histograms": {}})
        try:
            if _has_media(path):
                _read_file(path, found)
        except (OSError, TypeError, ValueError, errors.ConfigError) as error:
            problems.append(f"{os.path.relpath(path, model_dir)} can't be read: {error}")
    return {kind: _named(model_dir, kind, sources) for kind in ("images", "histograms")}, problems


def _named(
    model_dir: str, kind: str, sources: Mapping[tuple[str, str], Mapping[str, _Values]]
) -> _Values:
    """Return the values of one kind in all folders, named by folder and tag."""
    named: _Values = {}
    for (folder, _), found in sources.items():
        split = os.path.relpath(folder, model_dir)
        prefix = "" if split == os.curdir else f"{split}/"
        for name, steps in found[kind].items():
            if steps:
                named.setdefault(f"{prefix}{name}", {}).update(steps)
    return named


def _read_file(path: str, found: Mapping[str, _Values]) -> None:
    """Add the images and histograms of an event file to `found`, which contains earlier files."""
    # Import TensorFlow only here: the import takes seconds, and most runs have neither images nor
    # histograms.
    import tensorflow as tf

    from official_lite.telemetry import tensorboard_writer

    start = tf.compat.v1.SessionLog.START
    for _, event in tensorboard_writer.read_events(path):
        if event.session_log.status == start:
            _forget(found, event.step)
        for value in event.summary.value:
            kind = value.metadata.plugin_data.plugin_name
            if kind not in found:
                continue
            tensor = tf.make_ndarray(value.tensor)
            if kind == "images" and (tensor.ndim != 1 or tensor.size < 3):
                raise ValueError(
                    f"the image {value.tag!r} has the shape {tensor.shape}; expected a vector of "
                    "width, height and at least one encoded image"
                )
            found[kind].setdefault(value.tag, {})[event.step] = tensor


def _forget(found: Mapping[str, _Values], first: int) -> None:
    """Remove the values from step `first` onward, where a restarted training job began again."""
    for values in found.values():
        for steps in values.values():
            for step in [step for step in steps if step >= first]:
                del steps[step]


def _event_files(directory: str) -> Iterator[str]:
    for name in files.list_names(directory):
        path = os.path.join(directory, name)
        if "tfevents" in name:
            yield path
        # Skip links, because they may form a cycle.
        elif not name.startswith(".") and not os.path.islink(path) and not is_run(path):
            yield from _event_files(path)


def _has_media(path: str) -> bool:
    with files.open_file(path, "rb") as file:
        content = file.read()
    return b"images" in content or b"histograms" in content


def _images(prefix: str, found: _Values) -> Iterator[Markup]:
    """Yield a title and a row of images for each tag.

    Images of early steps are omitted if the total size would exceed the limit.
    """
    room = _MAX_IMAGE_BYTES
    for name, steps in found.items():
        row: collections.deque[Markup] = collections.deque()
        number = 0
        for step in reversed(_chosen(steps)):
            # The tensor contains the width, the height, and the encoded images.
            width, _, *pngs = steps[step].tolist()
            for png in pngs[:_MAX_IMAGES_PER_STEP]:
                if png.startswith(_PNG) and (room := room - len(png)) >= 0:
                    row.appendleft(_image(name, step, int(width), png))
            number += len(pngs)
        left_out = "" if len(row) == number else f" ({len(row)} of the {number} of these steps)"
        yield tag("h3", f"{prefix}{name}{left_out}")
        yield tag("div", row, class_="images")


def _image(name: str, step: int, width: int, png: bytes) -> Markup:
    caption = f"step {step:,}"
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    image = tag("img", src=source, alt=f"{name} at {caption}")
    # Enlarge small images without smoothing, so that their pixels are visible.
    return tag(
        "figure",
        image,
        tag("figcaption", caption),
        class_="small" if width < _SMALL else None,
        style=f"width:{min(max(width, _SMALL), _LARGE)}px",
    )


def _chosen(steps: Mapping[int, Any]) -> list[int]:
    """Return the first and the last step, and evenly spaced steps between them."""
    known = sorted(steps)
    indices = np.linspace(0, len(known) - 1, min(len(known), _MAX_STEPS)).round().astype(int)
    return [known[index] for index in indices]


def _histogram_charts(
    name: str, histograms: Mapping[int, npt.NDArray[Any]]
) -> Iterator[charts.Chart]:
    """Yield a chart of quantiles by step, and a chart of the first and last distributions."""
    known = {step: rows for step, rows in histograms.items() if _is_histogram(rows)}
    if not known:
        return
    yield charts.Chart(title=f"{name}: quantiles", y_label=name, series=_quantiles(known))
    shown = _chosen(known)
    low = min(known[step][0, 0] for step in shown)
    high = max(known[step][-1, 1] for step in shown)
    if high > low:
        edges = np.linspace(low, high, _NUM_BINS + 1)
        yield charts.Chart(
            title=f"{name}: distribution",
            x_label="value",
            y_label="share of the values",
            series=[
                _distribution(known[step], edges, step, colour=colour)
                for colour, step in enumerate(dict.fromkeys((shown[0], shown[-1])))
            ],
        )


def _is_histogram(rows: npt.NDArray[Any]) -> bool:
    return bool(rows.ndim == 2 and rows.shape[1:] == (3,) and np.sum(rows[:, 2]) > 0)


def _quantiles(histograms: Mapping[int, npt.NDArray[Any]]) -> list[charts.Series]:
    looks: list[tuple[float, str, int, charts.Look]] = [
        (0.95, "5 % and 95 %", 5, "dashed"),
        (0.75, "25 % and 75 %", 0, "dashed"),
        (0.5, "median", 0, "solid"),
        (0.25, "25 % and 75 %", 0, "dashed"),
        (0.05, "5 % and 95 %", 5, "dashed"),
    ]
    steps = sorted(histograms)
    return [
        charts.Series(
            name=group if share == 0.5 else f"{100 * share:.0f} %",
            group=group,
            points=[(step, _quantile(histograms[step], share)) for step in steps],
            colour=colour,
            look=look,
        )
        for share, group, colour, look in looks
    ]


def _quantile(rows: npt.NDArray[Any], share: float) -> float:
    return float(np.interp(share * rows[:, 2].sum(), *reversed(_cumulative(rows))))


def _cumulative(rows: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the edges of the buckets and the number of values below each of them."""
    edges = np.append(rows[:, 0], rows[-1, 1])
    return edges, np.append(0.0, np.cumsum(rows[:, 2]))


def _distribution(
    rows: npt.NDArray[Any], edges: npt.NDArray[Any], step: int, *, colour: int
) -> charts.Series:
    shares = np.diff(np.interp(edges, *_cumulative(rows))) / rows[:, 2].sum()
    return charts.Series(
        name=f"step {step:,}",
        points=list(zip(edges.tolist(), [*shares.tolist(), 0.0], strict=True)),
        colour=colour,
        look="steps",
    )
