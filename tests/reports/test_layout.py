from official_lite.reports import markup


def _table(cells: list[list], **fields) -> str:
    rows = [markup.Row(head=f"row {n}", cells=each) for n, each in enumerate(cells)]
    columns = ["", *(f"column {n}" for n in range(len(cells[0])))]
    return markup.table(caption="all", columns=columns, rows=rows, **fields)


def test_table_names_its_columns_and_rows() -> None:
    shown = _table([[1.5, "<b>"], [None, "c"]])
    assert shown.count('scope="col"') == 3
    assert shown.count('scope="row"') == 2
    assert "<caption><span>all</span></caption>" in shown
    assert '<td class="text">&lt;b&gt;</td>' in shown


def test_number_is_sorted_by_all_its_digits() -> None:
    assert 'data-value="0.123456789">0.12346</td>' in _table([[0.123456789]], is_sortable=True)


def test_what_is_missing_is_sorted_as_nothing() -> None:
    assert 'data-value="">–</td>' in _table([[1.0], [None]])


def test_facts_that_are_not_known_are_left_out() -> None:
    assert "seed" not in markup.facts({"seed": None, "step": 3})


def test_times_are_for_people() -> None:
    assert [markup.duration(s) for s in (None, 1.25, 3661)] == [None, "1.2 s", "1:01:01"]
    assert markup.when(None) is None
