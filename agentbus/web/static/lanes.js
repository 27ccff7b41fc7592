// The timeline: a lane per agent; bars are leases and announced silence, connectors are messages; a slider replays.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor.js";
import { get, link, now, param, query, readAgents, readSpans, setParams, tick, useData } from "./core.js";
import { Button, clock, duration, Empty, html, Load, number, plain, plural, Search, stamp, Status, Text, tone } from "./ui.js";
import { ticks } from "./tasks.js";

const SPANS = { "5m": 5 * 60e3, "1h": 3600e3, "1d": 86400e3 };
const LANE = 30;
const LABEL = 168;
const NARROW = 128;
const MOST_MESSAGES = 5000;
const MOST_CONNECTORS = 400;
const STATUS_AFTER = {
  agent_expected: "pending", agent_registered: "running", agent_taken_over: "running", agent_completed: "completed", agent_suspected: "suspect", agent_recovered: "running", agent_failed: "failed", agent_stopped: "stopped", agent_deleted: null,
};
const LIVE = new Set(["running", "suspect", "spawning"]);

/** Read what happened since a time: messages and events of agents. */
async function readPast(since) {
  const { items: messages, whole } = await readSpans(since, now() + 60e3, MOST_MESSAGES);
  const events = [];
  let cursor = null;
  do {
    const page = await get(query("events", { last: true, limit: 1000, cursor }));
    events.push(...page.items);
    cursor = page.cursor;
  } while (cursor && events.at(-1).at > since && events.length < 10000);
  return { messages, events: events.filter((one) => one.at > since && one.subject_kind === "agent").reverse(), whole, from: whole ? since : messages.at(-1).created };
}

/** The status of each agent over time: for each, spans [from, to, status]. */
function statusSpans(agents, events, from, to) {
  const found = new Map(agents.map((one) => [one.id, []]));
  const byAgent = new Map();
  for (const event of events) {
    if (!(event.kind in STATUS_AFTER)) continue;
    if (!byAgent.has(event.subject)) byAgent.set(event.subject, []);
    byAgent.get(event.subject).push(event);
  }
  for (const [id, list] of byAgent) {
    const spans = [];
    const first = list[0];
    let status = first.facts.before ?? (["agent_registered", "agent_expected", "agent_taken_over"].includes(first.kind) ? null : "running");
    let at = from;
    for (const event of list) {
      if (status) spans.push([at, event.at, status]);
      at = event.at;
      status = STATUS_AFTER[event.kind];
    }
    if (status) spans.push([at, to, status]);
    found.set(id, spans);
  }
  for (const one of agents) {
    if (byAgent.has(one.id)) continue;
    const start = Math.max(from, one.created);
    if (start < to) found.set(one.id, [[start, to, one.status]]);
  }
  return found;
}

const statusAt = (spans, at) => spans.find(([from, to]) => from <= at && at < to)?.[2] ?? (spans.length && at >= spans.at(-1)[1] ? spans.at(-1)[2] : null);

export default function Lanes() {
  const span = SPANS[param("span")] ? param("span") : "1h";
  const size = SPANS[span];
  const agents = useData("agents", { topics: ["agents"], every: 4, slowest: 10, read: readAgents });
  const past = useData(`past:${span}`, { topics: ["messages", "agents"], every: 15, read: () => readPast(now() - size) });
  const replay = Number(param("at")) || 0;
  const end = replay ? Math.ceil((Number(param("end")) || replay) / 1000) * 1000 : tick.value;
  const from = end - size;
  const q = param("q").toLowerCase();
  const box = useRef(null);
  const [width, setWidth] = useState(900);
  const [playing, setPlaying] = useState(false);
  const [view, setView] = useState([0, 40]);
  useLayoutEffect(() => {
    if (!box.current) return undefined;
    const measure = () => {
      const node = box.current;
      setWidth(Math.max(220, node.clientWidth - (node.clientWidth < 620 ? NARROW : LABEL)));
      setView([Math.max(0, Math.floor(node.scrollTop / LANE) - 5), Math.ceil((node.scrollTop + node.clientHeight) / LANE) + 5]);
    };
    const observer = new ResizeObserver(measure);
    observer.observe(box.current);
    box.current.addEventListener("scroll", measure);
    measure();
    return () => observer.disconnect();
  }, [agents.data.value !== undefined && past.data.value !== undefined]);
  useEffect(() => {
    if (!playing) return undefined;
    const timer = setInterval(() => {
      const next = Number(param("at")) + size / 200;
      if (next >= end) { setPlaying(false); setParams({ at: Math.floor(end) }); } else setParams({ at: Math.floor(next) });
    }, 100);
    return () => clearInterval(timer);
  }, [playing, end, size]);

  const found = past.data.value;
  const all = agents.data.value?.items ?? [];
  const lanes = useMemo(() => {
    if (!found) return [];
    const spans = statusSpans(all, found.events, from, end);
    const rows = new Map();
    const lane = (id) => {
      if (!rows.has(id)) rows.set(id, { id, spans: spans.get(id) ?? [], leases: [], busy: [], active: 0 });
      return rows.get(id);
    };
    for (const message of found.messages) {
      if (message.created > end) continue;
      if (!/^\(|^operator:/.test(message.sender)) lane(message.sender).active++;
      if (message.holder && message.leased_at && message.leased_at < end) {
        lane(message.holder).leases.push([Math.max(from, message.leased_at), Math.min(end, message.finished ?? end), message]);
        lane(message.holder).active++;
      }
    }
    for (const event of found.events) if (event.kind === "agent_busy" && event.facts.seconds) lane(event.subject).busy.push([event.at, Math.min(end, event.facts.until ?? event.at + event.facts.seconds * 1000)]);
    for (const one of all) if (LIVE.has(one.status) || found.events.some((event) => event.subject === one.id)) lane(one.id);
    return [...rows.values()].filter((one) => !q || one.id.toLowerCase().includes(q)).sort((a, b) => (a.id < b.id ? -1 : 1));
  }, [found, all, q, Math.floor(end / 1000), size]);
  const order = useMemo(() => new Map(lanes.map((one, index) => [one.id, index])), [lanes]);
  const x = (at) => ((at - from) / size) * width;
  const connectors = useMemo(() => {
    if (!found) return [];
    const list = [];
    for (const message of found.messages) {
      if (!message.leased_at || !message.holder || message.leased_at < from || message.leased_at > (replay || end)) continue;
      const a = order.get(message.sender), b = order.get(message.holder);
      if (a === undefined || b === undefined || a === b) continue;
      if (Math.max(a, b) < view[0] || Math.min(a, b) > view[1]) continue;
      list.push([message, a, b]);
      if (list.length >= MOST_CONNECTORS) break;
    }
    return list;
  }, [found, order, view, Math.floor(end / 1000), replay]);
  const marks = ticks(from, end, width < 500 ? 3 : 7);
  const labelWidth = width + LABEL > 620 + LABEL - NARROW ? LABEL : NARROW;
  const moment = replay && found ? (() => {
    const counts = {};
    for (const lane of lanes) { const status = statusAt(lane.spans, replay); if (status) counts[status] = (counts[status] ?? 0) + 1; }
    const waiting = found.messages.filter((one) => one.created <= replay && !(one.leased_at && one.leased_at <= replay) && !(one.finished && one.finished <= replay)).length;
    const held = found.messages.filter((one) => one.leased_at && one.leased_at <= replay && !(one.finished && one.finished <= replay)).length;
    return { counts, waiting, held };
  })() : null;
  const height = lanes.length * LANE;
  const shown = lanes.slice(view[0], view[1]);
  return html`<div class="page full lanes-page"><header class="head"><h1>Timeline</h1><span class="muted">${found && plural(lanes.length, "agent")}</span><span class="grow"></span>
      <div class="segmented" role="group" aria-label="Span">${Object.keys(SPANS).map((one) => html`<button key=${one} type="button" aria-pressed=${String(one === span)} onClick=${() => setParams({ span: one, at: "", end: "" })}>${{ "5m": "5 min", "1h": "1 h", "1d": "1 d" }[one]}</button>`)}</div></header>
    <div class="filters"><${Search} label="Search agents" /><ul class="legend" aria-label="Legend"><li><i class="swatch lease"></i>lease</li><li><i class="swatch busy"></i>announced silence</li><li><i class="swatch line"></i>message</li><li><i class="swatch bad"></i>failed</li></ul></div>
    <div class="replay"><${Button} kind="small" icon=${playing ? "pause" : "play"} onClick=${() => { if (!replay) setParams({ at: Math.floor(from), end: Math.floor(end) }); setPlaying(!playing); }}>${playing ? "Stop" : "Replay"}</${Button}>
      <input type="range" aria-label="Moment" aria-valuetext=${replay ? stamp(replay) : "now"} min=${Math.floor(from)} max=${Math.floor(end)} step="100" value=${replay || end} onInput=${(event) => setParams({ at: event.target.value, end: param("end") || Math.floor(end) })} />
      <output>${replay ? html`<b>${stamp(replay)}</b> ${Object.entries(moment.counts).map(([status, n]) => html`<${Status} key=${status} s=${status} text=${`${n} ${status}`} /> `)} <span class="muted">${number(moment.waiting)} waiting, ${number(moment.held)} held</span>` : html`<span class="muted">live</span>`}</output>
      ${replay > 0 && html`<${Button} kind="small quiet" onClick=${() => { setPlaying(false); setParams({ at: "", end: "" }); }}>Back to live</${Button}>`}</div>
    <${Load} from=${past}>${() => (lanes.length === 0 ? html`<${Empty} title="No agent in this span" />` : html`<div class="lanes" ref=${box} tabindex="0" role="region" aria-label="Lanes of agents over time">
      <div class="lanes-axis" aria-hidden="true"><span style=${{ width: `${labelWidth}px` }}></span><svg width=${width} height="22">${marks.found.map((at) => html`<text key=${at} x=${x(at)} y="15">${marks.step >= 864e5 ? stamp(at).slice(5, 10) : clock(at).slice(0, marks.step < 60e3 ? 8 : 5)}</text>`)}</svg></div>
      <div class="lanes-body" style=${{ height: `${height}px` }}>
        <ul class="lanes-names" style=${{ width: `${labelWidth}px`, paddingTop: `${view[0] * LANE}px` }}>${shown.map((lane) => { const status = replay ? statusAt(lane.spans, replay) : lane.spans.at(-1)?.[2]; return html`<li key=${lane.id}><span class=${`status ${tone(status)}`} title=${status ?? "not there"}><i aria-hidden="true"></i><span class="hidden">${status}</span></span><a class="ref" href=${link("agents", lane.id)}><${Text} v=${lane.id} /></a></li>`; })}</ul>
        <svg class="lanes-plot" width=${width} height=${height} role="img" aria-label=${`${lanes.length} agents; leases and messages from ${stamp(from)} to ${stamp(end)}`}>
          ${marks.found.map((at) => html`<line key=${at} class="grid" x1=${x(at)} x2=${x(at)} y1="0" y2=${height} />`)}
          ${shown.map((lane, index) => { const y = (view[0] + index) * LANE; return html`<g key=${lane.id}>
            ${lane.spans.map(([a, b, status]) => b > from && html`<rect key=${a} class=${`l-span ${tone(status)}`} x=${x(Math.max(a, from))} width=${Math.max(1, x(b) - x(Math.max(a, from)))} y=${y + 13} height="4" rx="2" />`)}
            ${lane.busy.map(([a, b]) => html`<rect key=${a} class="l-busy" x=${x(Math.max(a, from))} width=${Math.max(2, x(b) - x(Math.max(a, from)))} y=${y + 5} height=${LANE - 10} rx="3" />`)}
            ${lane.leases.slice(-400).map(([a, b, message]) => (!replay || a <= replay) && html`<rect key=${message.id} onClick=${() => { location.hash = link("messages", message.message_id); }} class=${`l-lease ${tone(message.status)}`} x=${x(a)} width=${Math.max(2.5, x(replay ? Math.min(b, replay) : b) - x(a))} y=${y + 7} height=${LANE - 14} rx="2"><title>${plain(`${message.type} from ${message.sender}: ${message.status}, ${duration(b - a)}`)}</title></rect>`)}</g>`; })}
          <g class=${`l-lines${connectors.length > 120 ? " many" : ""}`}>${connectors.map(([message, a, b]) => { const x1 = Math.max(0, x(message.created)), x2 = x(message.leased_at), y1 = a * LANE + LANE / 2, y2 = b * LANE + LANE / 2; const bend = Math.max(8, Math.min(40, (x2 - x1) / 2)); return html`<path key=${message.id} d=${`M${x1.toFixed(1)},${y1} C${(x1 + bend).toFixed(1)},${y1} ${(x2 - bend).toFixed(1)},${y2} ${x2.toFixed(1)},${y2}`} class=${message.status === "dead" ? "bad" : ""}><title>${plain(`${message.type}: ${message.sender} → ${message.holder}`)}</title></path>`; })}</g>
          ${replay > 0 && html`<line class="l-now" x1=${x(replay)} x2=${x(replay)} y1="0" y2=${height} />`}
        </svg></div></div>`)}</${Load}>
    <p class="muted note">Each message shows its last delivery${found && !found.whole ? `; the newest ${number(MOST_MESSAGES)} messages reach back to ${clock(found.from)}` : ""}${connectors.length >= MOST_CONNECTORS ? `; the newest ${MOST_CONNECTORS} connectors are drawn` : ""}.</p></div>`;
}
