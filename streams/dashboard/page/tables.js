// Tables that are changed only in place, and become cards on narrow screens.

import { $, make, plural, say, show, sync } from "./elements.js";

const ROWS_FIRST = matchMedia("(max-width: 45rem)").matches ? 12 : 100;

export class Table {
  /** Columns are [name, kind, cell]: kind is "head", "number", "short", or "wide" with or without "name"; cell(item) is text, or {text, done, end} with a bar. */
  constructor(place, title, caption, columns) {
    this.columns = columns;
    this.place = $(place);
    const scroll = make("div", { class: "table", role: "region", tabindex: "0", "aria-labelledby": title });
    const table = make("table", { role: "table" });
    this.caption = make("caption", {}, caption);
    const head = make("tr", { role: "row" });
    for (const [name, kind] of columns) {
      head.append(make("th", { scope: "col", role: "columnheader", class: kind === "number" ? "number" : "" }, name));
    }
    const top = make("thead", { role: "rowgroup" });
    top.append(head);
    this.body = make("tbody", { role: "rowgroup" });
    table.append(this.caption, top, this.body);
    scroll.append(table);
    this.more = make("p", { class: "more" });
    this.moreText = make("span");
    const button = make("button", { type: "button" }, "Show all");
    button.addEventListener("click", () => {
      this.isWhole = true;
      this.show(this.items, this.keyOf);
    });
    this.more.append(this.moreText, button);
    this.place.append(scroll, this.more);
  }

  /** Show the first rows, and all of them after a click on "Show all". */
  show(items, keyOf) {
    [this.items, this.keyOf] = [items, keyOf];
    const shown = this.isWhole ? items : items.slice(0, ROWS_FIRST);
    sync(this.body, shown, keyOf, () => this.row(), (row, item) => this.fill(row, item));
    show(this.more, shown.length < items.length);
    say(this.moreText, `${plural(items.length - shown.length, "row")} not shown. `);
  }

  row() {
    const row = make("tr", { role: "row" });
    for (const [name, kind] of this.columns) {
      const head = kind === "head";
      const cell = make(head ? "th" : "td", { role: head ? "rowheader" : "cell", class: kind, "data-name": name });
      if (head) cell.scope = "row";
      const inside = make("span");
      inside.append(make("span"));
      cell.append(inside);
      row.append(cell);
    }
    return row;
  }

  fill(row, item) {
    row.classList.toggle("stale", Boolean(item.stale));
    this.columns.forEach(([, kind, cellOf], index) => {
      const cell = row.children[index];
      const inside = cell.firstElementChild;
      const value = cellOf(item);
      const text = typeof value === "string" ? value : value.text;
      say(inside.querySelector("span"), text);
      cell.classList.toggle("empty", text === "");
      bar(inside, typeof value === "string" ? null : value);
      if (kind === "head") mark(inside, item.stale ? "stale" : "");
    });
  }
}

function bar(inside, value) {
  let node = inside.querySelector("progress");
  if (value === null || !value.end) {
    if (node) node.remove();
    return;
  }
  if (!node) {
    node = make("progress", { "aria-hidden": "true" });
    inside.prepend(node);
  }
  node.max = value.end;
  node.value = Math.min(value.done, value.end);
}

function mark(inside, text) {
  let node = inside.querySelector(".mark");
  if (!text) {
    if (node) node.remove();
    return;
  }
  if (!node) {
    node = make("span", { class: "mark" });
    inside.append(node);
  }
  say(node, text);
}
