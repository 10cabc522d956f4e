// Time line: marks of events in lanes of members. Events that would overlap are one mark with their
// number. The list of episodes below has the same as text.

import { $, draw, duration, number, plural, say, show, sync } from "./elements.js";

const LANES_MAX = 24;
const TEXTS_MAX = 12; // events named in a mark of many
const WIDE = 720; // pixels from which labels stand left of their lanes
const LABELS = 210;
const EDGE = 16;
const AXIS = 26;
const APART = 11; // pixels; nearer events become one mark
const TICK = 96;
const S = 1000;
const MIN = 60 * S;
const H = 60 * MIN;
const D = 24 * H;
const STEPS = [
  1, 2, 5, 10, 20, 50, 100, 200, 500, S, 2 * S, 5 * S, 10 * S, 15 * S, 30 * S, MIN, 2 * MIN, 5 * MIN, 10 * MIN,
  15 * MIN, 30 * MIN, H, 2 * H, 3 * H, 6 * H, 12 * H, D, 2 * D, 7 * D, 14 * D, 30 * D, 90 * D, 365 * D,
];
/** Kinds of marks, the most important first. */
const KINDS = ["alarm", "went", "came", "moved", "decided"];
const SHAPES = {
  alarm: "M-6 -6h12v12h-12z",
  came: "M0 -7 7 6h-14z",
  went: "M0 7 7 -6h-14z",
  decided: "M0 -7 7 0 0 7 -7 0z",
  moved: "M-6 0a6 6 0 1 0 12 0a6 6 0 1 0 -12 0z",
};
const GROUP = "Group";
const ALARMS = "Alarms";

const view = { marks: [], chosen: "", episodes: null, layers: null };

// Clients set the times of records: later ones than a date can have would be an error.
const utc = (ms) => new Date(Math.min(ms, 8.64e15)).toISOString();
const moment = (ms) => utc(ms).slice(11, 23);

function tickText(ms, step) {
  if (step >= D) return utc(ms).slice(0, 10);
  if (step >= MIN) return utc(ms).slice(11, 16);
  return step >= S ? utc(ms).slice(11, 19) : moment(ms);
}

/** Return all events, oldest first: those of the log, and the beginnings and ends of alarms. */
function eventsOf(page) {
  const logged = page.history.flatMap((episode) => episode.marks.map((mark) => ({
    at: mark.at_ms, since: mark.since_ms, kind: mark.kind, lane: mark.lane || GROUP, text: mark.text, episode: episode.began_ms,
  })));
  const alarms = page.alarms.map((alarm) => ({
    at: alarm.began_ms, until: alarm.ended_ms ?? page.status.read_ms, kind: "alarm", lane: ALARMS,
    text: `${alarm.name}, ${alarm.ended_ms === null ? "now" : `for ${duration(alarm.ended_ms - alarm.began_ms)}`}: ${alarm.text}`,
  }));
  return [...logged, ...alarms].sort((one, other) => one.at - other.at);
}

/** Return the lanes: group and alarms, then members by name, of many those with the latest events. */
function lanesOf(events, status) {
  const latest = new Map(status.members.filter((each) => each.phase !== "GONE").map((each) => [each.name, 0]));
  for (const each of events) if (each.lane !== GROUP && each.lane !== ALARMS) latest.set(each.lane, each.at);
  const names = [...latest.keys()].sort((one, other) => latest.get(other) - latest.get(one) || (one < other ? -1 : 1));
  const hasAlarms = events.some((each) => each.lane === ALARMS);
  return {
    names: [GROUP, ...(hasAlarms ? [ALARMS] : []), ...names.slice(0, LANES_MAX).sort()],
    left: Math.max(names.length - LANES_MAX, 0),
  };
}

function merged(events, place) {
  const open = new Map();
  const marks = [];
  for (const event of events) {
    const last = open.get(event.lane);
    const x = place.x(event.at);
    if (last && x - last.x < APART) {
      last.events.push(event);
      last.since = Math.min(last.since, event.since ?? Infinity);
      last.until = Math.max(last.until, event.until ?? 0);
      if (KINDS.indexOf(event.kind) < KINDS.indexOf(last.kind)) last.kind = event.kind;
      continue;
    }
    const mark = { x, lane: event.lane, kind: event.kind, events: [event], since: event.since ?? Infinity, until: event.until ?? 0 };
    mark.key = `${event.lane} ${event.at} ${event.kind}`;
    open.set(event.lane, mark);
    marks.push(mark);
  }
  return marks;
}

function textOf(mark) {
  const texts = mark.events.slice(0, TEXTS_MAX).map((each) => `${moment(each.at)} ${each.text}`);
  if (mark.events.length > TEXTS_MAX) texts.push(`and ${mark.events.length - TEXTS_MAX} more`);
  return `${mark.lane}: ${texts.join("\n")}`;
}

function shortened(text, most) {
  const half = Math.floor(most / 2);
  return text.length <= most ? text : `${text.slice(0, half - 1)}…${text.slice(-half)}`;
}

function layers() {
  if (view.layers) return view.layers;
  const svg = draw("svg", { role: "presentation" });
  const all = { svg };
  for (const name of ["bands", "axis", "lanes", "spans", "marks"]) {
    all[name] = draw("g", { class: name, ...(name === "marks" ? { role: "presentation" } : { "aria-hidden": "true" }) });
    svg.append(all[name]);
  }
  $("timeline").append(svg);
  view.layers = all;
  return all;
}

function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    const text = String(value);
    if (node.getAttribute(name) !== text) node.setAttribute(name, text);
  }
}

/** Show the history and alarms of a page in the chosen span of time. */
export function showTimeline(page) {
  const all = eventsOf(page);
  const until = page.status.read_ms;
  const chosen = Number($("span").value);
  const oldest = Math.min(until - 10 * S, ...page.history.map((each) => each.began_ms), ...all.map((each) => each.at));
  const from = chosen ? until - chosen : oldest;
  const events = all.filter((each) => (each.until ?? each.at) >= from);
  const { names, left } = lanesOf(events, page.status);
  const width = Math.max($("timeline").clientWidth, 280);
  const wide = width >= WIDE;
  const [start, end] = [wide ? LABELS : EDGE, width - EDGE];
  const place = {
    width, start, end, wide, from, until,
    lane: wide ? 34 : 52,
    x: (at) => Math.round(start + ((end - start) * (Math.min(Math.max(at, from), until) - from)) / (until - from)),
    y: (lane) => AXIS + place.lane * names.indexOf(lane) + (wide ? 17 : 34),
  };
  place.height = AXIS + place.lane * names.length + 8;
  const parts = layers();
  set(parts.svg, { width, height: place.height, viewBox: `0 0 ${width} ${place.height}` });
  showAxis(parts.axis, place);
  showBands(parts.bands, page.history, place);
  showLanes(parts.lanes, names, place);
  view.marks = merged(events.filter((each) => names.includes(each.lane)), place);
  showSpans(parts.spans, place);
  showMarks(parts.marks, place);
  const more = left ? ` ${plural(left, "member")} without recent events ${left === 1 ? "is" : "are"} not shown.` : "";
  say($("timeline-more"), `From ${utc(from).slice(0, 19).replace("T", " ")} to ${utc(until).slice(0, 19).replace("T", " ")}; alarms are those since the dashboard started.${more}`);
}

function showAxis(axis, place) {
  const most = Math.max(Math.floor((place.end - place.start) / TICK), 1);
  let step = STEPS.find((each) => (place.until - place.from) / each <= most) || STEPS[STEPS.length - 1];
  while ((place.until - place.from) / step > most) step *= 2;
  const ticks = [];
  for (let at = Math.ceil(place.from / step) * step; at <= place.until; at += step) ticks.push(at);
  sync(axis, ticks, String, () => {
    const tick = draw("g");
    tick.append(draw("line"), draw("text"));
    return tick;
  }, (tick, at) => {
    const x = place.x(at);
    set(tick.children[0], { x1: x, x2: x, y1: AXIS - 6, y2: place.height });
    // At the right end the text would be cut off.
    set(tick.children[1], { x, y: 14, "text-anchor": x > place.end - 30 ? "end" : x < place.start + 30 && !place.wide ? "start" : "middle" });
    say(tick.children[1], tickText(at, step));
  });
}

function showBands(bands, history, place) {
  const seen = history.filter((each) => (each.ended_ms ?? place.until) >= place.from);
  sync(bands, seen, (each) => String(each.began_ms), () => draw("rect"), (band, each) => {
    const [x, x2] = [place.x(each.began_ms), place.x(each.ended_ms ?? place.until)];
    set(band, { x, width: Math.max(x2 - x, 3), y: AXIS - 6, height: place.height - AXIS + 6 });
  });
}

function showLanes(lanes, names, place) {
  sync(lanes, names, (name) => name, () => {
    const lane = draw("g");
    lane.append(draw("line"), draw("text"), draw("title"));
    return lane;
  }, (lane, name) => {
    const y = place.y(name);
    set(lane.children[0], { x1: place.start, x2: place.end, y1: y, y2: y });
    set(lane.children[1], { x: EDGE, y: place.wide ? y + 4 : y - 18 });
    say(lane.children[1], shortened(name, place.wide ? 25 : 36));
    say(lane.children[2], name);
  });
}

/** Show how long copies were made and alarms lasted, below all marks. */
function showSpans(spans, place) {
  const long = view.marks.filter((mark) => mark.since !== Infinity || mark.until);
  sync(spans, long, (mark) => mark.key, () => draw("rect"), (span, mark) => {
    const [x, x2] = [Math.min(mark.x, place.x(mark.since)), Math.max(mark.x, place.x(mark.until))];
    set(span, { class: mark.kind, x, width: x2 - x, y: place.y(mark.lane) - 3, height: 6 });
  });
}

function showMarks(marks, place) {
  sync(marks, view.marks, (mark) => mark.key, () => {
    const node = draw("g", { role: "option" });
    node.append(draw("title"), draw("path"), draw("text"));
    node.addEventListener("click", () => choose(node.dataset.key));
    return node;
  }, (node, mark) => {
    const y = place.y(mark.lane);
    const [title, shape, count] = node.children;
    const many = mark.events.length > 1;
    const text = textOf(mark);
    const isChosen = node.dataset.key === view.chosen;
    set(node, { class: `event ${mark.kind}${isChosen ? " chosen" : ""}`, "aria-label": text, "aria-selected": isChosen });
    mark.node = node;
    say(title, text);
    const half = 6 + 3.5 * number.format(mark.events.length).length;
    set(shape, {
      transform: `translate(${mark.x} ${y})`,
      d: many ? `M${-half} 0a9 9 0 0 1 9 -9h${2 * (half - 9)}a9 9 0 0 1 0 18h${-2 * (half - 9)}a9 9 0 0 1 -9 -9z` : SHAPES[mark.kind],
    });
    set(count, { x: mark.x, y: y + 4 });
    say(count, many ? number.format(mark.events.length) : "");
  });
  view.marks.forEach((mark, index) => { mark.node.id = `mark-${index}`; });
  const chosen = view.marks.find((mark) => mark.node.dataset.key === view.chosen);
  if (chosen) set($("timeline"), { "aria-activedescendant": chosen.node.id });
  else $("timeline").removeAttribute("aria-activedescendant");
  show($("moment"), Boolean(chosen));
  say($("moment"), chosen ? textOf(chosen) : "");
}

function choose(key) {
  view.chosen = key;
  for (const mark of view.marks) {
    const isChosen = mark.node.dataset.key === key;
    mark.node.classList.toggle("chosen", isChosen);
    mark.node.setAttribute("aria-selected", String(isChosen));
    if (!isChosen) continue;
    set($("timeline"), { "aria-activedescendant": mark.node.id });
    show($("moment"), true);
    say($("moment"), textOf(mark));
  }
}

function openEpisode(mark) {
  const began = mark.events.map((each) => each.episode).find(Boolean);
  const details = [...$("history").children].find((each) => each.dataset.began === String(began));
  if (!details) return;
  details.open = true;
  details.querySelector("summary").focus();
}

$("timeline").addEventListener("keydown", (pressed) => {
  const { marks } = view;
  if (!marks.length) return;
  const ordered = [...marks].sort((one, other) => one.events[0].at - other.events[0].at);
  const now = ordered.findIndex((mark) => mark.node.dataset.key === view.chosen);
  const last = ordered.length - 1;
  const next = {
    ArrowRight: Math.min(now + 1, last), ArrowDown: Math.min(now + 1, last), Home: 0, End: last,
    ArrowLeft: now < 0 ? last : Math.max(now - 1, 0), ArrowUp: now < 0 ? last : Math.max(now - 1, 0),
  }[pressed.key];
  if (next !== undefined) choose(ordered[next].node.dataset.key);
  else if (pressed.key === "Enter" && now >= 0) openEpisode(ordered[now]);
  else return;
  pressed.preventDefault();
});
