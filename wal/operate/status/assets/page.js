// The page of the status service. Every text of the log is set as textContent, never as markup.
"use strict";
const byId = (id) => document.getElementById(id);
let token = "";
const HISTORY = 60;
const plots = {};
let before = null;
let offset = 0;
const LIMIT = 100;
const FINE = ["ok", "–", "created", "waiting", "running", "paused", "draining"];

async function get(path) {
  const answer = await fetch(path, { headers: token ? { Authorization: `Bearer ${token}` } : {} });
  if (answer.status === 401) { byId("login").hidden = false; throw new Error("a token is needed"); }
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.text || `status ${answer.status}`);
  return body;
}

async function act(name, body) {
  if (!token) { byId("login").hidden = false; throw new Error("enter the token above, then try again"); }
  const answer = await fetch(`api/actions/${name}`, { method: "POST", headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" }, body: JSON.stringify(body) });
  const result = await answer.json();
  if (!answer.ok) throw new Error(result.text || `status ${answer.status}`);
  return result;
}

function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (bytes >= 1024 && at < units.length - 1) { bytes /= 1024; at += 1; }
  return `${at ? bytes.toFixed(1) : Math.round(bytes)} ${units[at]}`;
}
const seconds = (s) => s === null || s === undefined ? "–" : s < 1 ? `${(s * 1000).toFixed(1)} ms` : s < 120 ? `${s.toFixed(1)} s` : s < 7200 ? `${Math.round(s / 60)} min` : `${(s / 3600).toFixed(1)} h`;
const count = (n) => n === null || n === undefined ? "–" : Math.round(n).toLocaleString("en");
const when = (time) => time ? time.replace("T", " ").replace(/\.\d+/, "") : "–";

function table(id, caption, columns, rows) {
  const made = document.createDocumentFragment();
  const title = made.appendChild(document.createElement("thead")).appendChild(document.createElement("tr"));
  for (const [name, , kind] of columns) { const th = title.appendChild(document.createElement("th")); th.scope = "col"; th.textContent = name; if (kind === "n") th.className = "n"; }
  const body = made.appendChild(document.createElement("tbody"));
  for (const row of rows) {
    const tr = body.appendChild(document.createElement("tr"));
    for (const [name, value, kind] of columns) {
      const td = tr.appendChild(document.createElement("td"));
      const text = String(value(row) ?? "–");
      td.textContent = text; td.dataset.label = name;
      if (kind === "n") td.className = "n";
      if (kind === "bad" && !FINE.includes(text)) td.className = "bad";
    }
  }
  if (!rows.length) { const td = body.appendChild(document.createElement("tr")).appendChild(document.createElement("td")); td.colSpan = columns.length; td.textContent = `no ${caption}`; }
  byId(id).replaceChildren(made);
}

function plot(name, value, text) {
  let drawn = plots[name];
  if (!drawn) {
    const figure = byId("plots").appendChild(document.createElement("figure"));
    const caption = figure.appendChild(document.createElement("figcaption"));
    caption.textContent = name;
    const number = figure.appendChild(document.createElement("strong"));
    const svg = figure.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "svg"));
    svg.setAttribute("viewBox", `0 0 ${HISTORY - 1} 40`); svg.setAttribute("preserveAspectRatio", "none"); svg.setAttribute("role", "img");
    const line = svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "polyline"));
    drawn = plots[name] = { values: [], number, svg, line };
  }
  drawn.values.push(value);
  if (drawn.values.length > HISTORY) drawn.values.shift();
  const most = Math.max(...drawn.values, 1e-12);
  const from = HISTORY - drawn.values.length;
  drawn.line.setAttribute("points", drawn.values.map((v, i) => `${from + i},${38 - 36 * v / most}`).join(" "));
  drawn.number.textContent = text;
  drawn.svg.setAttribute("aria-label", `${name}: now ${text}, the last ${drawn.values.length} seconds`);
}

function total(live, field) { return live.pchannels.reduce((sum, each) => sum + each[field], 0); }
function counts(live, field) {
  const first = live.pchannels.find((each) => each[field].bounds.length);
  if (!first) return null;
  return { bounds: first[field].bounds, counts: first[field].counts.map((_, i) => live.pchannels.reduce((sum, each) => sum + (each[field].counts[i] || 0), 0)) };
}
function quantile(now, then, q) {
  if (!now || !then) return null;
  const fresh = now.counts.map((n, i) => n - then.counts[i]);
  const all = fresh.reduce((a, b) => a + b, 0);
  if (!all) return null;
  let below = 0;
  for (let i = 0; i < fresh.length; i++) { below += fresh[i]; if (below >= q * all) return now.bounds[Math.min(i, now.bounds.length - 1)]; }
  return null;
}

async function refreshLive() {
  const live = await get("api/live");
  byId("location").textContent = live.location;
  byId("redrive").hidden = !live.actions;
  byId("process").textContent = `release ${live.release} · pid ${live.pid} · up ${seconds(live.uptime_s)}`;
  const failed = live.pchannels.filter((each) => each.failure);
  const state = byId("state");
  const stopped = Object.entries(live.stopped_consumers).map(([cursor, how]) => `consumer ${cursor} has ${how}`);
  const said = failed.length ? `FAILED: ${failed[0].failure}` : stopped.length ? stopped.join(", ") : `${live.role} of a log on ${live.backend}, ${count(live.vchannels)} vchannels: all is well`;
  if (state.textContent !== said) state.textContent = said;
  state.className = failed.length || stopped.length ? "bad" : "";
  if (before) {
    const passed = Math.max(live.at_s - before.at_s, 0.001);
    const events = (total(live, "events") - total(before, "events")) / passed, bytes = (total(live, "bytes") - total(before, "bytes")) / passed;
    plot("appended events a second", events, count(events));
    plot("appended bytes a second", bytes, size(bytes));
    const append = quantile(counts(live, "append_s"), counts(before, "append_s"), 0.99), sync = quantile(counts(live, "sync_s"), counts(before, "sync_s"), 0.99);
    plot("append latency, p99", append || 0, append === null ? "–" : `≤ ${seconds(append)}`);
    plot("sync latency, p99", sync || 0, sync === null ? "–" : `≤ ${seconds(sync)}`);
    plot("bytes in flight", live.in_flight, size(live.in_flight));
    plot("open transactions", total(live, "open_transactions"), count(total(live, "open_transactions")));
  }
  before = live;
  table("pchannels", "pchannels", [["pchannel", (r) => r.name], ["state", (r) => r.failure || "ok", "bad"], ["term", (r) => r.term, "n"], ["events", (r) => count(r.events), "n"], ["held", (r) => size(r.log_bytes), "n"], ["readers", (r) => count(r.readers), "n"], ["open transactions", (r) => count(r.open_transactions), "n"]], live.pchannels);
}

async function refreshTables() {
  const cursors = (await get("api/cursors?limit=500")).rows;
  cursors.sort((a, b) => b.lag_bytes - a.lag_bytes);
  table("cursors", "cursors", [["cursor", (r) => r.cursor], ["vchannels", (r) => r.pattern || r.vchannels.join(", ")], ["state", (r) => r.stale ? "stale" : "ok", "bad"], ["behind", (r) => size(r.lag_bytes), "n"], ["holds", (r) => size(r.held_bytes), "n"], ["since its save", (r) => seconds(r.idle_s), "n"]], cursors);
  table("consumers", "consumers", [["cursor", (r) => r.cursor], ["vchannels", (r) => r.pattern || r.vchannels.join(", ")], ["members", (r) => r.members.map((m) => `${m.process} (${count(m.in_hand)} in hand)`).join(", ")], ["state", (r) => r.state, "bad"], ["handled", (r) => count(r.handled), "n"], ["failed", (r) => count(r.failed), "n"], ["dead letters", (r) => count(r.dead_lettered), "n"], ["in hand", (r) => count(r.in_hand), "n"], ["behind", (r) => seconds(r.lag_s), "n"], ["held by", (r) => r.held_by], ["error", (r) => r.error || "–", "bad"], ["at message", (r) => r.message_id], ["since", (r) => when(r.stopped_at)]], (await get("api/consumers?limit=500")).rows);
  table("broadcasts", "unfinished broadcasts", [["state", (r) => r.state === "stuck" ? "stuck" : r.state], ["age", (r) => seconds(r.age_s), "n"], ["keys", (r) => r.resource_keys.join(", ")], ["missing copies", (r) => r.missing_appends.join(", ")], ["missing acks", (r) => r.missing_acks.join(", ")], ["trouble", (r) => r.last_error, "bad"]], (await get("api/broadcasts?limit=500")).rows);
  table("retention", "pchannels", [["pchannel", (r) => r.pchannel], ["held by", (r) => r.row === "retention" ? "the log" : r.kind], ["name", (r) => r.row === "retention" ? "" : r.name], ["bytes", (r) => size(r.bytes), "n"], ["bound", (r) => r.bytes_max === undefined ? "" : size(r.bytes_max), "n"], ["oldest", (r) => r.oldest || ""]], (await get("api/retention?limit=500")).rows);
}

async function refreshVChannels() {
  const page = await get(`api/ls?limit=${LIMIT}&offset=${offset}&filter=${encodeURIComponent(byId("filter").value)}`);
  table("ls", "vchannels", [["vchannel", (r) => r.vchannel], ["pchannel", (r) => r.pchannel], ["messages", (r) => count(r.messages), "n"], ["bytes", (r) => size(r.bytes), "n"], ["last message", (r) => when(r.last_append)], ["its id", (r) => r.last_id]], page.rows);
  byId("pages").textContent = page.total ? `${offset + 1} to ${offset + page.rows.length} of ${count(page.total)}` : "none";
  byId("before").hidden = byId("after").hidden = page.total <= LIMIT;
  byId("before").disabled = offset === 0;
  byId("after").disabled = offset + LIMIT >= page.total;
}

function every(ms, call) {
  const run = async () => {
    if (!document.hidden) {
      try { await call(); } catch (error) { const state = byId("state"); state.textContent = `not connected: ${error.message}`; state.className = "bad"; }
    }
    setTimeout(run, ms);
  };
  run();
}
byId("login").addEventListener("submit", (event) => { event.preventDefault(); token = byId("token").value; byId("token").value = ""; byId("login").hidden = true; refreshVChannels().catch(() => {}); });
byId("redrive").addEventListener("submit", async (event) => {
  event.preventDefault();
  const name = byId("letters").value, said = byId("redriven");
  said.textContent = "…";
  try {
    for (let all = 0, some = 1; some; said.textContent = `${count(all)} appended again${some ? "…" : ""}`) {
      some = (await act("redrive", { dead_letter: name, confirm: name, limit_s: 5 })).redriven;
      all += some;
    }
  } catch (error) { said.textContent = error.message; }
});
byId("filter").addEventListener("input", () => { offset = 0; refreshVChannels().catch(() => {}); });
byId("before").addEventListener("click", () => { offset = Math.max(0, offset - LIMIT); refreshVChannels().catch(() => {}); });
byId("after").addEventListener("click", () => { offset += LIMIT; refreshVChannels().catch(() => {}); });
every(1000, refreshLive);
every(3000, refreshTables);
every(5000, refreshVChannels);
