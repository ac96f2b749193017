// Tables that can be sorted and searched.

function makeSortable(table) {
  const cells = [...table.tHead.rows[0].cells];
  cells.forEach((cell, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...cell.childNodes);
    cell.append(button);
    button.addEventListener("click", () => sortBy(table, cells, column));
  });
}

function sortBy(table, cells, column) {
  const isFalling = cells[column].getAttribute("aria-sort") === "ascending";
  cells.forEach((cell) => cell.removeAttribute("aria-sort"));
  cells[column].setAttribute("aria-sort", isFalling ? "descending" : "ascending");
  const body = table.tBodies[0];
  const keyed = [...body.rows].map((row) => ({ row, key: keyOf(row.cells[column]) }));
  const areNumbers = keyed.every(({ key }) => key === "" || !Number.isNaN(Number(key)));
  const compare = (a, b) =>
    areNumbers ? Number(a) - Number(b) : a.localeCompare(b, "en", { numeric: true });
  keyed.sort(({ key: a }, { key: b }) => {
    // Missing values come last in either direction.
    if (a === "" || b === "") return (a === "") - (b === "");
    return isFalling ? compare(b, a) : compare(a, b);
  });
  body.append(...keyed.map(({ row }) => row));
}

function keyOf(cell) {
  return cell.dataset.value ?? cell.textContent.trim();
}

function makeFilter(form) {
  const table = document.getElementById(form.dataset.table);
  const words = form.querySelector("input[type=search]");
  const isOnlyDifferent = form.querySelector("input[type=checkbox]");
  const apply = () => {
    const wanted = words.value.toLowerCase();
    for (const row of table.tBodies[0].rows) {
      const isWanted = row.textContent.toLowerCase().includes(wanted);
      const isLeftOut = isOnlyDifferent?.checked && !row.classList.contains("differs");
      row.hidden = !isWanted || isLeftOut;
    }
  };
  form.addEventListener("input", apply);
  apply();
}
