// Dashboard page: follows the polls of a group and shows the last one. Names come from members, so
// they are only set as text, never as markup; the content security policy enforces that.

import { $, draw, duration, make, number, plural, say, show, sum, sync } from "./elements.js";
import { Table } from "./tables.js";
import { showGraph, showGraphFigures } from "./graph.js";
import { showTimeline } from "./timeline.js";

const SPARKS = 120; // polls in a small curve, which begins after the first few
const SPARKS_FIRST = 5;
const SILENCE_S = 20; // beyond the interval without an event: the connection is lost
const RETRY_S = [1, 2, 5, 10];
const TOKEN = "tidewheel-token";

const page = { look: 0, status: null, history: [], alarms: [], graph: null, seenAt: 0, connection: "connecting", problem: "", lostAt: 0 };
const curves = { lag: [], rate: [] };

// --- texts ---

const orDash = (value, text) => (value === null || value === undefined || value === "" ? "-" : text(value));
const count = (value) => orDash(value, (each) => number.format(each));
const clock = (ms) => new Date(ms).toLocaleTimeString();

function ago(ms) {
  const seconds = Math.floor((Date.now() - ms) / 1000);
  return seconds < 2 ? "" : `, ${duration(1000 * seconds).replace(/\.0 s/, " s")} ago`;
}

function since(each, readMs) {
  return orDash(each.since_ms, (ms) => `${each.since_known === false ? "≥ " : ""}${duration(readMs - ms)}`);
}

function badge(node, text, kind) {
  say(node, text);
  node.className = `badge ${kind}`;
  show(node, true);
}

/** Show a figure with the curve of its history. */
function figure(id, text, curve = null) {
  const place = $(id);
  if (!place.firstElementChild) place.append(make("span"));
  say(place.firstElementChild, text);
  if (curve === null) return;
  let svg = place.querySelector("svg");
  if (!svg) {
    svg = draw("svg", { viewBox: `0 0 ${SPARKS} 24`, preserveAspectRatio: "none", "aria-hidden": "true" });
    svg.append(draw("polyline"));
    place.append(svg);
  }
  const top = Math.max(1, ...curve);
  const points = curve.map((value, i) => `${SPARKS - curve.length + i},${(23 - (22 * value) / top).toFixed(1)}`);
  svg.firstElementChild.setAttribute("points", points.length >= SPARKS_FIRST ? points.join(" ") : "");
}

// --- the group ---

const percent = (each) => (each.end ? `${Math.floor((100 * Math.min(each.done, each.end)) / each.end)}\u00a0%` : "-");

const members = new Table("members", "members-title", "* its program leads the group", [
  ["Member", "head", (each) => each.name + (each.leads ? " *" : "")],
  ["Process", "number", (each) => (each.pid ? String(each.pid) : "-")],
  ["Rack", "short", (each) => orDash(each.rack, String)],
  ["Phase", "wide", (each) => (each.phase === "ACTIVE" || !each.reason ? each.phase : `${each.phase}: ${each.reason}`)],
  ["Since", "number", (each) => since(each, page.status.read_ms)],
  ["Heard", "number", (each) => orDash(each.heard_ms_ago, (ms) => `${duration(ms)} ago`)],
  ["Threads", "number", (each) => count(each.threads)],
  ["Tasks", "number", (each) => count(each.active.length)],
  ["Learners", "number", (each) => count(each.learner.length)],
  ["Standbys", "number", (each) => count(each.standby.length)],
]);

const tasks = new Table("tasks", "tasks-title", "Lag is the records to process; ranges are the task's key ranges", [
  ["Task", "head", (each) => each.task],
  ["Owner", "wide name", (each) => orDash(each.member_name, String)],
  ["Phase", "wide", (each) => (each.target ? `${each.phase} → ${each.target_name}` : each.phase)],
  ["Copies", "wide", (each) => copiesOf(each.task)],
  ["Lag", "number", (each) => count(each.lag)],
  ["Records/s", "number", (each) => count(each.rate)],
  ["Ranges", "number", (each) => ranges(each)],
  ["Epoch", "number", (each) => count(each.epoch)],
  ["Since", "number", (each) => since(each, page.status.read_ms)],
]);

const hands = new Table("ranges", "hands-title", "As last reported by its worker", [
  ["Task", "head", (each) => each.task],
  ["Owner", "wide name", (each) => orDash(each.member_name, String)],
  ["Key hash", "short", (each) => each.key_hash.toString(16).padStart(8, "0")],
  ["Offset", "number", (each) => String(each.offset)],
  ["For", "number", (each) => duration(each.age_ms)],
]);

const copies = new Table("copies", "copies-title", "A learner gets its task when it is ready", [
  ["Task", "head", (each) => each.task],
  ["Role", "short", (each) => each.role],
  ["At", "wide name", (each) => orDash(each.member_name, String)],
  ["Phase", "short", (each) => each.phase],
  ["Restored", "number", (each) => ({ text: percent(each), done: each.done, end: each.end })],
  ["Lag", "number", (each) => count(each.lag)],
  ["Records/s", "number", (each) => count(each.rate)],
  ["Ready in", "number", (each) => (each.phase === "READY" ? "now" : orDash(each.eta_s, (s) => duration(s * 1000)))],
  ["Since", "number", (each) => since(each, page.status.read_ms)],
]);

function copiesOf(task) {
  const all = [...page.status.learners, ...page.status.standbys].filter((each) => each.task === task);
  return all.map((each) => `${each.role} at ${each.member_name} ${each.phase === "READY" ? "ready" : percent(each)}`).join(", ");
}

function ranges(each) {
  const stuck = each.ranges.length;
  return stuck ? `${each.range_count}, ${stuck} at one record` : String(each.range_count);
}

const isSettled = (each) => each.phase === "RUNNING" && !each.target;

function byName(one, other) {
  const [a, b] = [one, other].map((each) => each.task.split("_").map(Number));
  return a[0] - b[0] || a[1] - b[1];
}

function urgent(one, other) {
  return (
    isSettled(one) - isSettled(other) || (other.lag || 0) - (one.lag || 0) || byName(one, other)
  );
}

function showTasks(status) {
  const wanted = $("filter").value.trim().toLowerCase();
  const found = status.tasks.filter((each) =>
    [each.task, each.member_name, each.phase, each.target_name].some((text) => text.toLowerCase().includes(wanted)),
  );
  found.sort($("order").value === "name" ? byName : urgent);
  tasks.show(found, (each) => each.task);
}

function showFigures(status) {
  const live = status.members.filter((each) => each.phase !== "GONE");
  const running = status.tasks.filter((each) => each.phase === "RUNNING" || each.phase === "WARMING");
  figure("figure-members", count(live.length));
  figure("figure-tasks", `${running.length} of ${status.tasks.length}`);
  figure("figure-learners", count(status.learners.length));
  figure("figure-lag", total(status, "lag"), curves.lag);
  figure("figure-rate", total(status, "rate"), curves.rate);
  figure("figure-alarms", count(status.alarms.length));
  $("figure-alarms").parentElement.classList.toggle("bad", status.alarms.length > 0);
}

function known(status, name) {
  return status.tasks.filter((each) => each[name] !== null && !each.stale).map((each) => each[name]);
}

function total(status, name) {
  const values = known(status, name);
  return values.length ? number.format(sum(values)) : "-";
}

function leader(status) {
  if (!status.leader) return "Nobody has led this group yet.";
  const heard = orDash(status.leader_heard_ms_ago, (ms) => `heard ${duration(ms)} ago`);
  return (
    `Led by ${status.leader_name} (epoch ${status.leader_epoch}, ${heard === "-" ? "not heard" : heard}), target ` +
    `${status.group_epoch}, step ${status.step_epoch}, topology ${status.topology_epoch} ${status.topology_hash || "-"}, ` +
    `protocol ${status.protocol}, assignor ${status.assignor || "-"}`
  );
}

const PHASES = { RUNNING: "good", NOT_READY: "bad" };

function showGroup() {
  const status = page.status;
  show($("main"), status !== null);
  if (status === null) return;
  say($("application"), status.application_id);
  badge($("phase"), status.phase, PHASES[status.phase] || "warn");
  showFigures(status);
  showGraphFigures(status);
  say($("leader"), leader(status));
  show($("alarms"), status.alarms.length > 0);
  sync($("alarm-list"), status.alarms, (each) => each.name, () => make("li"), (item, each) => say(item, each.text));
  members.show([...status.members].sort((one, other) => (one.name < other.name ? -1 : 1)), (each) => each.incarnation);
  showTasks(status);
  const held = status.tasks.flatMap((task) =>
    task.ranges.map((each) => ({ task: task.task, member_name: task.member_name, stale: task.stale, ...each })),
  );
  show($("hands"), held.length > 0);
  hands.show(held, (each) => `${each.task} ${each.offset} ${each.key_hash}`);
  const all = [...status.learners, ...status.standbys];
  show($("copies-section"), all.length > 0 || status.waiting.length > 0);
  copies.show(all, (each) => `${each.task} ${each.role} ${each.incarnation}`);
  show($("waiting"), status.waiting.length > 0);
  say($("waiting"), `Waiting for a place among the learners (max_warmup_replicas): ${status.waiting.join(", ")}`);
}

function showHistory() {
  const episodes = [...page.history].reverse().map((episode) => {
    const [title, ...rest] = episode.text.split("\n");
    return { ...episode, title, rest: rest.join("\n") };
  });
  sync($("history"), episodes, (each) => String(each.began_ms), () => {
    const node = make("details");
    node.append(make("summary"), make("pre"));
    return node;
  }, (node, each) => {
    node.dataset.began = each.began_ms;
    say(node.children[0], each.title);
    say(node.children[1], each.rest);
  });
  show($("history-none"), episodes.length === 0);
}

// --- age of the figures ---

const CONNECTIONS = { live: "good", lost: "bad", ended: "bad" };

function showState() {
  const status = page.status;
  const asOf = status === null ? "" : ` What is shown is as of ${clock(page.seenAt)}.`;
  const notices = {
    lost: `Connection lost at ${clock(page.lostAt)}.${asOf} Trying again.`,
    ended: `The dashboard was stopped at ${clock(page.lostAt)}.${asOf} Trying again.`,
  };
  const unread = page.problem ? `The group can't be read: ${page.problem}.${asOf}` : "";
  const notice = notices[page.connection] || unread;
  const old = status !== null && Boolean(notice);
  badge($("connection"), old ? `${page.connection === "live" ? "not read" : `connection ${page.connection}`}, stale` : page.connection,
    unread ? "bad" : CONNECTIONS[page.connection] || "waiting");
  // Screen readers announce it once, not every second.
  const alert = $("notice");
  if (!notice) alert.textContent = "";
  else if (alert.dataset.about !== page.connection + page.problem) say(alert, notice);
  alert.dataset.about = notice ? page.connection + page.problem : "";
  show(alert, Boolean(notice));
  document.body.classList.toggle("old", old);
  say($("read"), status === null ? "" : `Read at ${clock(page.seenAt)}${ago(page.seenAt)}.`);
  if (status === null) return;
  const alarms = plural(status.alarms.length, "alarm");
  say($("told"), `${status.phase}, ${alarms}${notice ? ", stale" : ""}`);
  document.title = `${notice ? "(stale) " : ""}${status.application_id} ${status.phase}${status.alarms.length ? `, ${alarms}` : ""}`;
}

function take(told) {
  page.problem = told.problem;
  if (told.status) {
    page.status = told.status;
    page.history = told.history || page.history;
    page.alarms = told.alarms;
    if (told.graph) {
      page.graph = told.graph;
      showGraph(told.graph);
    }
    page.seenAt = Date.now() - 1000 * told.age_s;
    for (const name of told.look === page.look ? [] : ["lag", "rate"]) {
      curves[name] = [...curves[name], sum(known(told.status, name))].slice(-SPARKS);
    }
    page.look = told.look;
    showGroup();
    showHistory();
    showTimeline(page);
  }
  showState();
}

function lose(how) {
  if (page.connection !== how) page.lostAt = Date.now();
  page.connection = how;
  showState();
}

// --- connection by fetch: EventSource would need the token in the address ---

const sleep = (seconds) => new Promise((wake) => setTimeout(wake, 1000 * seconds));

function askForToken(wrong) {
  const form = $("ask");
  page.connection = wrong ? "wrong token" : "token needed";
  showState();
  show(form, true);
  $("token").focus();
  return new Promise((given) => {
    form.onsubmit = (submitted) => {
      submitted.preventDefault();
      sessionStorage.setItem(TOKEN, $("token").value.trim());
      $("token").value = "";
      show(form, false);
      given();
    };
  });
}

/** Follow the polls until the connection ends; return true if the dashboard ended it. */
async function follow() {
  const token = sessionStorage.getItem(TOKEN);
  const giveUp = new AbortController();
  let timer = setTimeout(() => giveUp.abort(), 1000 * SILENCE_S);
  try {
    const headers = token ? { authorization: `Bearer ${token}` } : {};
    const answer = await fetch("api/events", { headers, cache: "no-store", signal: giveUp.signal });
    if (answer.status === 401) {
      clearTimeout(timer);
      await askForToken(Boolean(token));
      return false;
    }
    if (!answer.ok) throw new Error(await answer.text());
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ; ) {
      const { value, done } = await reader.read();
      if (done) return false;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const each of events) {
        if (each.startsWith("event: end")) return true;
        const told = JSON.parse(each.replace(/^data: /, ""));
        page.connection = "live";
        take(told);
        clearTimeout(timer);
        timer = setTimeout(() => giveUp.abort(), 1000 * (SILENCE_S + 2 * told.interval_s));
      }
    }
  } finally {
    clearTimeout(timer);
  }
}

async function followOn() {
  for (let tries = 0; ; tries += 1) {
    let ended = false;
    try {
      ended = await follow();
    } catch {
      ended = false;
    }
    if (page.connection === "live") tries = 0;
    if (!page.connection.endsWith("needed") && !page.connection.startsWith("wrong")) {
      lose(ended || page.connection === "ended" ? "ended" : "lost");
      await sleep(RETRY_S[Math.min(tries, RETRY_S.length - 1)]);
    } else {
      page.connection = "connecting";
    }
  }
}

$("filter").addEventListener("input", () => page.status && showTasks(page.status));
$("order").addEventListener("change", () => page.status && showTasks(page.status));
$("span").addEventListener("change", () => page.status && showTimeline(page));
new ResizeObserver(() => page.status && showTimeline(page)).observe($("timeline"));
setInterval(showState, 1000);
followOn();
