"""The HTML page about runs and studies, with its style, script and data in one file."""

import base64
import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Sequence

import official_lite
from official_lite.common import errors, files
from official_lite.reports import markup, media_sections, run_sections, study_sections
from official_lite.reports.markup import Child, Markup, tag
from official_lite.run import run_reading

__all__ = ["build_page"]

_HERE = pathlib.Path(__file__).parent
_SCRIPTS = ("axes.js", "plot.js", "tables.js", "page.js")
# The number of best trials whose curves are shown on the page of a study.
_NUM_BEST_TRIALS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Part:
    """A group of sections about the same runs or one study, whose charts share their switches."""

    title: str
    sections: Sequence[markup.Section]


def build_page(directories: Sequence[str], *, title: str = "", storages: Sequence[str] = ()) -> str:
    """Build the page as text.

    Args:
        directories: Directories of runs and studies, in display order. Runs are shown side by side,
            studies one after another.
        title: Title of the page. Defaults to the names of the runs and studies.
        storages: The databases that may be opened for studies that refer to them.

    Raises:
        errors.ConfigError: One of the directories contains neither a run nor a study.
    """
    named = dict(zip(_names(directories), directories, strict=True))
    studies = {name: path for name, path in named.items() if study_sections.is_study(path)}
    runs = [_read_run(path, name) for name, path in named.items() if name not in studies]
    parts = [_run_part(runs)] if runs else []
    for name, path in studies.items():
        parts.append(_study_part(study_sections.read_study(path, name=name, storages=storages)))
    return _document(title or _title(list(named)), parts)


def _title(names: Sequence[str]) -> str:
    most = 3
    return " · ".join(names) if len(names) <= most else f"{names[0]} and {len(names) - 1} more"


def _names(directories: Sequence[str]) -> list[str]:
    """Return a unique name for each directory: the fewest trailing path components that suffice.

    Raises:
        errors.ConfigValueError: If a directory is given twice.
    """
    paths = [os.path.abspath(path) if "://" not in path else path for path in directories]
    if twice := sorted({path for path in paths if paths.count(path) > 1}):
        raise errors.ConfigValueError(f"{twice[0]} is listed twice. Pass each directory once.")
    parts = [pathlib.PurePosixPath(path).parts for path in paths]
    for length in range(1, max(map(len, parts), default=1)):
        names = ["/".join(own[-length:]) for own in parts]
        if len(set(names)) == len(names):
            return names
    return paths


def _read_run(path: str, name: str) -> run_reading.Run:
    try:
        return run_reading.read_run(path, name=name)
    except errors.ConfigValueError as error:
        raise errors.ConfigValueError(f"{error} {_what_is_near(path)}".rstrip()) from error


def _what_is_near(path: str) -> str:
    """Return a hint for an error message, or an empty string.

    The hint lists the runs and studies in a directory, or a path similar to a missing path.
    """
    if not os.path.isdir(path):
        return files.did_you_mean(path)
    below = [os.path.join(path, name) for name in sorted(os.listdir(path))]
    found = [one for one in below if study_sections.is_study(one) or run_reading.is_run(one)]
    return f"Found {', '.join(found[:5])}{', …' if len(found) > 5 else ''}." if found else ""


def _run_part(runs: Sequence[run_reading.Run]) -> _Part:
    sections = [
        run_sections.overview(runs),
        run_sections.curves(runs),
        *media_sections.media(runs),
        run_sections.architectures(runs),
        run_sections.throughput(runs),
        run_sections.time_spent(runs),
        run_sections.checkpoints(runs),
        run_sections.config(runs),
        run_sections.environment(runs),
    ]
    title = f"Run {runs[0].name}" if len(runs) == 1 else f"{len(runs)} runs"
    return _Part(title=title, sections=[one for one in sections if one is not None])


def _study_part(study: study_sections.Study) -> _Part:
    sections = study_sections.study_sections(study)
    if best := _best_runs(study):
        curves = run_sections.curves(best)
        title = "Curves of the best trials"
        sections.append(dataclasses.replace(curves, title=title))
    return _Part(title=f"Study {study.name}", sections=sections)


def _best_runs(study: study_sections.Study) -> list[run_reading.Run]:
    """Read the runs of the best trials, except for trials that did not train."""
    by_number = {trial.number: trial for trial in study.trials}
    best = [by_number[number] for number in study.ranking[:_NUM_BEST_TRIALS]]
    return [
        run_reading.read_run(trial.model_dir, name=f"trial {trial.number}")
        for trial in best
        if run_reading.is_run(trial.model_dir)
    ]


def _document(title: str, parts: Sequence[_Part]) -> str:
    style = (_HERE / "page.css").read_text(encoding="utf-8")
    scripts = [(_HERE / name).read_text(encoding="utf-8") for name in _SCRIPTS]
    script = '"use strict";\n' + "\n".join(scripts)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(script)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="generator", content=f"official_lite {official_lite.__version__}"),
        tag("title", title),
        tag("style", Markup(style)),
    )
    body = tag(
        "body",
        tag("header", tag("h1", title), _contents(parts)),
        tag("noscript", markup.note("Enable JavaScript to see the charts of this page.")),
        tag("main", [_part(parts, number) for number in range(len(parts))]),
        tag("script", Markup(script)),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _policy(script: str) -> str:
    """Build a content security policy for `script` and embedded images, without network access."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    script_source = f"script-src 'sha256-{digest}'"
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; {script_source}"


def _contents(parts: Sequence[_Part]) -> Child:
    lists = [
        tag(
            "ul",
            tag("li", part.title) if len(parts) > 1 else None,
            [
                tag("li", tag("a", one.title, href=f"#{_anchor(parts, number, one)}"))
                for one in part.sections
            ],
        )
        for number, part in enumerate(parts)
    ]
    return tag("nav", lists, aria_label="Sections")


def _part(parts: Sequence[_Part], number: int) -> Markup:
    part = parts[number]
    sections = [
        tag(
            "section",
            tag("h2", one.title),
            one.content,
            id=_anchor(parts, number, one),
        )
        for one in part.sections
    ]
    heading = tag("h1", part.title) if len(parts) > 1 else None
    return tag("div", heading, sections, class_="part")


def _anchor(parts: Sequence[_Part], number: int, section: markup.Section) -> str:
    return section.name if len(parts) == 1 else f"part{number}-{section.name}"
