// Set up the page: its charts, switches and tables.

const plots = [];

function redraw() {
  for (const plot of plots) plot.draw();
}

function connectSwitches() {
  const connect = (selector, act) =>
    document.querySelectorAll(selector).forEach((input) => {
      input.addEventListener("input", () => {
        act(input);
        redraw();
      });
      // Apply the current value, too, because browsers may restore it after a reload.
      act(input);
    });
  const toggle = (set, value, isShown) => (isShown ? set.delete(value) : set.add(value));
  connect("input[data-smoothing]", (input) => {
    switchesOf(input).smoothing = Number(input.value);
    input.nextElementSibling.textContent = Number(input.value).toFixed(2);
  });
  connect("input[data-clock]", (input) => {
    switchesOf(input).isOverTime = input.checked;
  });
  connect("input[data-run]", (input) =>
    toggle(switchesOf(input).hiddenRuns, Number(input.dataset.run), input.checked),
  );
  connect("input[data-split]", (input) =>
    toggle(switchesOf(input).hiddenSplits, input.dataset.split, input.checked),
  );
}

// Open all closed sections for printing, because a reader of paper cannot open them.
function openForPrinting() {
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const each of opened) each.open = true;
    redraw();
  });
  window.addEventListener("afterprint", () => {
    for (const each of opened) each.open = false;
    redraw();
  });
}

connectSwitches();
document.querySelectorAll("figure.chart").forEach((figure) => plots.push(new Plot(figure)));
document.querySelectorAll("table.sortable").forEach(makeSortable);
document.querySelectorAll("[data-table]").forEach(makeFilter);
openForPrinting();
redraw();
