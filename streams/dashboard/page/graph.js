// Topology graph: boxes at the places that the server calculated, and the figures of the tasks.

import { $, draw, number, plural, say, show, sum } from "./elements.js";
import { Table } from "./tables.js";

const LINE = 17; // pixels, as in layout.py
const CHARACTER = 7.25;
const SMALLEST = 0.85; // of the natural size; narrower screens scroll

const shown = { graph: null, figures: new Map() };

const parts = new Table("graph-table", "graph-title", "Figures are the sums of the tasks whose members are heard", [
  ["Sub-topology", "head", (each) => each.title],
  ["Reads", "wide", (each) => each.reads.join(", ") || "-"],
  ["Writes", "wide", (each) => each.writes.join(", ") || "-"],
  ["Stores", "wide", (each) => each.stores.join(", ") || "-"],
  ["Tasks running", "number", (each) => each.figures.tasks],
  ["Records/s", "number", (each) => each.figures.rate],
  ["Lag", "number", (each) => each.figures.lag],
]);

/** Return the figures of a sub-topology; of silent or unknown tasks there are none. */
function figuresOf(part, status) {
  if (!part.has_tasks) return { tasks: "-", rate: "-", lag: "-", line: "read by each member", state: "" };
  const tasks = status.tasks.filter((each) => each.task.startsWith(`${part.part}_`));
  const running = tasks.filter((each) => (each.phase === "RUNNING" || each.phase === "WARMING") && !each.stale);
  const total = (name) => {
    const values = tasks.filter((each) => each[name] !== null && !each.stale).map((each) => each[name]);
    return values.length ? number.format(sum(values)) : "-";
  };
  const [rate, lag] = [total("rate"), total("lag")];
  return {
    rate, lag,
    tasks: `${running.length} of ${tasks.length}`,
    line: rate === "-" && lag === "-" ? "no figures yet" : `${rate} records/s, lag ${lag}`,
    state: tasks.length > 0 && running.length === tasks.length ? "good" : "warn",
  };
}

function cylinder(x, y) {
  return draw("path", { class: "store-sign", d: `M${x} ${y + 2}v7a4 2 0 0 0 8 0v-7a4 2 0 0 0 -8 0a4 2 0 0 0 8 0` });
}

function drawBox(box) {
  const node = draw("g", { class: `box ${box.kind}${box.is_repeated ? " repeated" : ""}` });
  const rounding = box.kind === "topic" ? box.height / 2 : 4;
  node.append(
    draw("title", {}, `${box.kind} ${box.name}`),
    draw("rect", { x: box.x, y: box.y, width: box.width, height: box.height, rx: rounding }),
    draw("text", { x: box.x + box.width / 2, y: box.y + LINE }, box.label),
  );
  box.stores.forEach((store, index) => {
    const [x, y] = [box.x + box.width / 2, box.y + LINE * (index + 2)];
    node.append(
      cylinder(Math.round(x - (store.length * CHARACTER) / 2 - 8), y - 10),
      draw("text", { class: "store", x: x + 5, y }, store),
    );
  });
  return node;
}

function drawFrame(frame) {
  const outline = draw("rect", { class: "frame", x: frame.x, y: frame.y, width: frame.width, height: frame.height, rx: 8 });
  // Links pass behind the strip, so that they do not cross its text.
  const head = draw("g");
  const [title, figures] = [1, 2].map((line) => draw("text", { x: frame.x + 12, y: frame.y + LINE * line + 2 }));
  title.setAttribute("class", "frame-title");
  head.append(
    draw("rect", { class: "strip", x: frame.x + 1, y: frame.y + 4, width: frame.width - 2, height: frame.header - 4 }),
    title, figures,
  );
  shown.figures.set(frame.part, { title, figures, outline });
  return { outline, head };
}

/** Draw a graph; its figures follow. */
export function showGraph(graph) {
  const { layout } = graph;
  shown.graph = graph;
  shown.figures.clear();
  const svg = draw("svg", { viewBox: `0 0 ${layout.width} ${layout.height}`, role: "img", "aria-label": descriptionOf(graph) });
  svg.style.width = `${layout.width}px`;
  svg.style.minWidth = `${Math.round(layout.width * SMALLEST)}px`;
  const end = draw("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto" });
  end.append(draw("path", { d: "M0 0 8 4 0 8z" }));
  const definitions = draw("defs");
  definitions.append(end);
  const frames = layout.frames.map(drawFrame);
  svg.append(
    definitions,
    ...frames.map((each) => each.outline),
    ...layout.links.map((path) => draw("path", { class: "link", d: path, "marker-end": "url(#arrow)" })),
    ...frames.map((each) => each.head),
    ...layout.boxes.map(drawBox),
  );
  $("graph").replaceChildren(svg);
  show($("graph-section"), graph.parts.length > 0);
  show($("graph-hint"), graph.topology_hash === "");
}

function descriptionOf(graph) {
  const texts = graph.parts.map((part) => {
    const reads = part.reads.length ? ` reads ${part.reads.join(", ")}` : "";
    const writes = part.writes.length ? ` and writes ${part.writes.join(", ")}` : "";
    return `${part.title}${reads}${writes}.`;
  });
  return `Topology of ${plural(graph.parts.length, "part")}. ${texts.join(" ")} The table below has the figures.`;
}

export function showGraphFigures(status) {
  const { graph } = shown;
  if (graph === null) return;
  const rows = graph.parts.map((part) => ({ ...part, figures: figuresOf(part, status) }));
  for (const row of rows) {
    const frame = shown.figures.get(row.part);
    say(frame.title, row.has_tasks ? `${row.title}: ${row.figures.tasks} running` : row.title);
    say(frame.figures, row.figures.line);
    frame.outline.setAttribute("class", `frame ${row.figures.state}`);
  }
  parts.show(rows, (each) => String(each.part));
  const differs = graph.topology_hash !== "" && status.topology_hash !== "" && graph.topology_hash !== status.topology_hash;
  show($("graph-notice"), differs);
  say($("graph-notice"), differs
    ? `This is the program's topology ${graph.topology_hash}, but the group runs ${status.topology_hash}: rates may belong to other nodes.` : "");
}
