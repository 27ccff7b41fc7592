// The parts that screens are made of. Texts of agents are hostile: they are shown by Text only, never as markup.
import { Fragment, h, htm, signal, useEffect, useLayoutEffect, useRef, useState } from "./vendor.js";
import { Big, link, listParam, now, param, Problem, setParams, tick, toggleParam, toJson } from "./core.js";

export const html = htm.bind(h);

// Text

// Control characters but tab and line feed, bidirectional controls, invisible characters, tags, variation selectors
// in numbers, lone surrogates, and long runs of combining marks.
const ODD = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]|\p{Cs}|\p{Co}|(?<=\p{M}{4})\p{M}+/gu;
const code = (character) => `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;

/** Return a text with odd characters written out, for attributes and titles. */
export function plain(value) {
  return String(value ?? "").replace(ODD, (found) => `⟦${code(found)}⟧`);
}

/** Show a text of an agent: isolated, with odd characters visible. */
export function Text({ v, max = 400 }) {
  if (v === null || v === undefined || v === "") return null;
  let text = typeof v === "object" ? (v instanceof Big ? v.text : toJson(v)) : String(v);
  const long = text.length > max;
  if (long) text = text.slice(0, max);
  const parts = [];
  let from = 0;
  for (const found of text.matchAll(ODD)) {
    if (found.index > from) parts.push(text.slice(from, found.index));
    parts.push(html`<span class="odd" title=${code(found[0])}>${code(found[0])}</span>`);
    from = found.index + found[0].length;
    if (parts.length > 400) break;
  }
  if (!parts.length) parts.push(text); else if (from < text.length) parts.push(text.slice(from));
  return html`<bdi>${parts}${long ? "…" : ""}</bdi>`;
}

// Numbers and times

const COMMAS = new Intl.NumberFormat("en");
export const number = (value) => (value === null || value === undefined ? "–" : COMMAS.format(value));
export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let size = value, unit = 0;
  while (size >= 1000 && unit < 4) { size /= 1000; unit++; }
  return `${size >= 100 || !unit ? Math.round(size) : size.toFixed(1)} ${units[unit]}`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 0) return `-${duration(-ms)}`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s < 600 && Math.floor(s % 60) ? `${Math.floor(s % 60)} s` : ""}`.trim();
  if (s < 86400) return `${Math.floor(s / 3600)} h ${s < 36000 && Math.floor((s % 3600) / 60) ? `${Math.floor((s % 3600) / 60)} min` : ""}`.trim();
  return `${Math.floor(s / 86400)} d ${s < 864000 ? `${Math.floor((s % 86400) / 3600)} h` : ""}`.trim();
}

export const clock = (at, ms = false) => {
  const d = new Date(at);
  const two = (n) => String(n).padStart(2, "0");
  const time = `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
  return ms ? `${time}.${String(d.getMilliseconds()).padStart(3, "0")}` : time;
};
export const stamp = (at) => {
  const d = new Date(at);
  const two = (n) => String(n).padStart(2, "0");
  return `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ${clock(at)}`;
};

const coarse = (ms) => duration(ms < 60e3 ? Math.floor(ms / 1000) * 1000 : ms).replace(/(min|h|d) .*/, "$1").replace(/\.\d s/, " s");

/** A time as its distance from now; the exact time on hover. */
export function Ago({ at, future = false }) {
  if (at === null || at === undefined || at === 0) return html`<span class="muted">–</span>`;
  const distance = tick.value - at;
  const text = future && distance < 0 ? `in ${coarse(-distance)}` : distance < 1500 ? "now" : `${coarse(distance)} ago`;
  return html`<time datetime=${new Date(at).toISOString()} title=${stamp(at)}>${text}</time>`;
}
export const At = ({ at }) => (at ? html`<time datetime=${new Date(at).toISOString()} title=${duration(now() - at) + " ago"}>${stamp(at)}</time>` : html`<span class="muted">–</span>`);

// Marks

const TONES = {
  running: "good", active: "good", leased: "good", ok: "good", approved: "good", finished: "good",
  completed: "done", acked: "done",
  suspect: "warn", waiting: "ask", open: "ask", unknown: "ask", paused: "warn", halted: "warn", degraded: "warn", warning: "warn",
  retrying: "warn", scheduled: "calm", queued: "info", interrupted: "bad",
  failed: "bad", dead: "bad", error: "bad", rejected: "bad",
  pending: "calm", spawning: "calm", stopped: "calm", expired: "calm", cancelled: "calm",
};
export const tone = (status) => TONES[status] ?? "calm";
export const Status = ({ s, text }) => html`<span class=${`status ${tone(s)}`}><i aria-hidden="true"></i>${text ?? s}</span>`;
export const Tag = ({ children, tone: t = "calm", title }) => html`<span class=${`tag ${t}`} title=${title}>${children}</span>`;

const ICONS = {
  now: "M3 12h4l2-6 4 12 2-6h6", agents: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6Zm8 0a3 3 0 1 0 0-6M2 20c0-4 3-6 6-6s6 2 6 6m2-6c3 0 6 2 6 6",
  lanes: "M3 6h9M8 12h10M14 18h7", queues: "M4 5h16M4 10h16M4 15h10M4 20h6", messages: "M3 6h18v12H3zM3 7l9 7 9-7",
  tasks: "M3 6l2 2 4-4M12 6h9M3 16l2 2 4-4M12 17h9", sessions: "M4 5h16v11H9l-5 4z", state: "M5 4h14v4H5zM5 10h14v4H5zM5 16h14v4H5z",
  events: "M12 7v5l3 2M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18Z", health: "M12 20s-8-5-8-11a4.5 4.5 0 0 1 8-3 4.5 4.5 0 0 1 8 3c0 6-8 11-8 11Z",
  pause: "M8 5v14M16 5v14", play: "M7 4l13 8-13 8z", sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8ZM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.5 1.5M17.5 17.5 19 19M5 19l1.5-1.5M17.5 6.5 19 5",
  moon: "M20 14A8 8 0 1 1 10 4a7 7 0 0 0 10 10Z", auto: "M12 3a9 9 0 1 0 0 18zM12 3a9 9 0 0 1 0 18", check: "M4 12l5 6L20 6", cross: "M6 6l12 12M18 6 6 18",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14ZM21 21l-5-5", copy: "M9 9h11v11H9zM5 15H4V4h11v1", send: "M4 12 20 4l-6 16-3-7z", out: "M15 4h5v16h-5M10 8l-4 4 4 4M6 12h9",
  redo: "M19 8a8 8 0 1 0 1 6M20 3v5h-5",
};
export const Icon = ({ name }) => html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false"><path d=${ICONS[name]} /></svg>`;

/** The name of something that has a page. */
export function Ref({ kind, id, children }) {
  if (!id) return html`<span class="muted">–</span>`;
  const shown = children ?? html`<${Text} v=${id} max=${128} />`;
  return html`<a class="ref" href=${link(`${kind}s`, id)}>${shown}</a>`;
}
export function Address({ to }) {
  if (!to) return html`<span class="muted">–</span>`;
  const pool = /^(pool|topic|operator):/.exec(to);
  return pool ? html`<a class="ref" href=${`${link("messages")}?to=${encodeURIComponent(to)}`}><span class="muted">${pool[0]}</span>${to.slice(pool[0].length)}</a>`
    : html`<${Ref} kind="agent" id=${to} />`;
}

export const Empty = ({ title, children }) => html`<div class="empty"><p>${title}</p>${children && html`<p class="muted">${children}</p>`}</div>`;

/** Say why data is missing, or show it. */
export function Load({ from, children, small }) {
  const error = from.error.value;
  const data = from.data.value;
  if (error && (data === undefined || error.status === 404)) {
    return html`<div class="problem" role="alert"><b><${Text} v=${error.message} /></b>${error.fix && html`<p><${Text} v=${error.fix} /></p>`}
      ${error.retry && html`<p class="muted">Trying again …</p>`}</div>`;
  }
  if (data === undefined) return small ? null : html`<div class="skeleton" aria-busy="true" aria-label="loading"><i></i><i></i><i></i></div>`;
  return children(data);
}

export function Progress({ value }) {
  const width = Math.max(0, Math.min(100, value ?? 0));
  return html`<span class="progress"><svg viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true"><rect width="100" height="4" rx="2" class="track" /><rect width=${width} height="4" rx="2" class="fill" /></svg><small>${width} %</small></span>`;
}

export function Facts({ of }) {
  const rows = of.filter((row) => row && row[1] !== null && row[1] !== undefined && row[1] !== "" && row[1] !== false);
  return html`<dl class="facts">${rows.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

export const Card = ({ title, aside, children, class: kind = "" }) => html`<section class=${`card ${kind}`}>
  ${(title || aside) && html`<header><h2>${title}</h2><div class="aside">${aside}</div></header>`}${children}</section>`;

export function Button({ icon, children, kind = "", onClick, ...rest }) {
  const [busy, setBusy] = useState(false);
  const click = async (event) => {
    event.stopPropagation();
    setBusy(true);
    try { await onClick(event); } catch (error) { report(error); } finally { setBusy(false); }
  };
  return html`<button type="button" class=${`button ${kind}`} disabled=${busy} onClick=${click} ...${rest}>${icon && html`<${Icon} name=${icon} />`}${children}</button>`;
}

export function Tabs({ name = "tab", items, label }) {
  const chosen = param(name) || items[0][0];
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const index = items.findIndex(([key]) => key === chosen);
    const next = items[(index + step + items.length) % items.length][0];
    setParams({ [name]: next === items[0][0] ? "" : next });
    event.currentTarget.querySelectorAll("button")[items.findIndex(([key]) => key === next)]?.focus();
  };
  return html`<div class="tabs" role="tablist" aria-label=${label} onKeyDown=${move}>${items.map(([key, title, count]) => html`
    <button key=${key} type="button" role="tab" aria-selected=${String(chosen === key)} tabindex=${chosen === key ? 0 : -1}
      onClick=${() => setParams({ [name]: key === items[0][0] ? "" : key })}>${title}${count !== undefined && html`<small>${number(count)}</small>`}</button>`)}</div>`;
}

// Filters

export function Search({ name = "q", label = "Search" }) {
  const [text, setText] = useState(param(name));
  const timer = useRef(0);
  const shown = param(name);
  useEffect(() => { setText(shown); }, [shown]);
  return html`<label class="search"><${Icon} name="search" /><span class="hidden">${label}</span>
    <input type="search" data-search value=${text} placeholder=${label} autocomplete="off" spellcheck=${false}
      onInput=${(event) => { const value = event.target.value; setText(value); clearTimeout(timer.current); timer.current = setTimeout(() => setParams({ [name]: value }), 150); }} /><kbd aria-hidden="true">/</kbd></label>`;
}

export function Chips({ name, label, options }) {
  const chosen = new Set(listParam(name));
  return html`<div class="chips" role="group" aria-label=${label}>${options.map(([value, count]) => html`
    <button key=${value} type="button" aria-pressed=${String(chosen.has(value))} class=${`chip ${tone(value)}`} onClick=${() => toggleParam(name, value)}>
      <i aria-hidden="true"></i>${value}${count !== undefined && html`<small>${number(count)}</small>`}</button>`)}</div>`;
}

export function Select({ name, label, options }) {
  const chosen = param(name);
  return html`<label class="select"><span>${label}</span><select value=${chosen} onChange=${(event) => setParams({ [name]: event.target.value })}>
    <option value="">all</option>${[...new Set([...options, chosen].filter(Boolean))].map((value) => html`<option key=${value} value=${value} selected=${value === chosen}>${plain(value)}</option>`)}</select></label>`;
}

export function Field({ name, label, placeholder }) {
  const shown = param(name);
  const [text, setText] = useState(shown);
  useEffect(() => { setText(shown); }, [shown]);
  return html`<label class="select"><span>${label}</span><input value=${text} placeholder=${placeholder} autocomplete="off" spellcheck=${false}
    onInput=${(event) => setText(event.target.value)} onChange=${(event) => setParams({ [name]: event.target.value.trim() })} /></label>`;
}

export const Clear = ({ names }) => names.some((name) => param(name)) && html`<button type="button" class="button quiet" onClick=${() => setParams(Object.fromEntries(names.map((name) => [name, ""])))}>Clear filters</button>`;

// JSON

const PAGE = 100;

function Node({ name, value, depth }) {
  const complex = value !== null && typeof value === "object" && !(value instanceof Big);
  const key = name === undefined ? null : html`<span class="j-key"><${Text} v=${name} max=${120} /></span><span class="muted">: </span>`;
  const [open, setOpen] = useState(depth > 0);
  const [shown, setShown] = useState(PAGE);
  if (!complex) {
    const kind = value === null ? "null" : value instanceof Big ? "number" : typeof value;
    return html`<div class="j-row">${key}<span class=${`j-${kind}`}>${kind === "string" ? html`"<${Text} v=${value} max=${4000} />"` : String(value)}</span></div>`;
  }
  const entries = Array.isArray(value) ? value.map((one, index) => [index, one]) : Object.entries(value);
  const sum = Array.isArray(value) ? `[${entries.length}]` : `{${entries.length}}`;
  if (!entries.length) return html`<div class="j-row">${key}<span class="muted">${Array.isArray(value) ? "[]" : "{}"}</span></div>`;
  return html`<div class="j-node"><button type="button" class="j-fold" aria-expanded=${String(open)} aria-label=${`${plain(name ?? "value")} ${sum}`} onClick=${() => setOpen(!open)}>${open ? "▾" : "▸"} </button>${key}<span class="muted">${sum}</span>
    ${open && html`<div class="j-children">${entries.slice(0, shown).map(([k, one]) => html`<${Node} key=${k} name=${k} value=${one} depth=${depth - 1} />`)}
      ${entries.length > shown && html`<button type="button" class="button quiet" onClick=${() => setShown(shown + 10 * PAGE)}>${number(entries.length - shown)} more</button>`}</div>`}</div>`;
}

/** The members of the value itself, without a line for the whole. */
function Root({ value, depth }) {
  const entries = Array.isArray(value) ? value.map((one, index) => [index, one]) : Object.entries(value);
  if (!entries.length || entries.length > PAGE) return html`<${Node} value=${value} depth=${depth} />`;
  return html`<div>${entries.map(([key, one]) => html`<${Node} key=${key} name=${key} value=${one} depth=${depth - 1} />`)}</div>`;
}

/** A value as a tree, or as text. */
export function Json({ value, depth = 2, label = "value" }) {
  const [text, setText] = useState(false);
  if (value === undefined) return null;
  const simple = value === null || typeof value !== "object";
  const written = text || simple ? (typeof value === "string" && !text ? value : toJson(value, 2)) : "";
  return html`<div class="json"><div class="json-bar">
      ${!simple && html`<button type="button" class="button quiet small" aria-pressed=${String(text)} onClick=${() => setText(!text)}>${text ? "tree" : "text"}</button>`}
      <button type="button" class="button quiet small" onClick=${() => copy(typeof value === "string" ? value : toJson(value, 2))}><${Icon} name="copy" /><span>copy</span></button></div>
    ${text || simple ? html`<pre tabindex="0" aria-label=${label}><${Text} v=${written} max=${200000} /></pre>` : html`<${Root} value=${value} depth=${depth} />`}</div>`;
}

/** Copy a text, also where the page is not a secure context. */
export async function copy(text) {
  try { await navigator.clipboard.writeText(text); toast("Copied"); return; } catch { /* older way */ }
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "offscreen";
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  toast(done ? "Copied" : "Copying is not possible here", !done);
}

// Notices and questions

const toasts = signal([]);
let count = 0;
export function toast(text, bad = false, fix = null) {
  const id = ++count;
  toasts.value = [...toasts.peek().slice(-3), { id, text, bad, fix }];
  setTimeout(() => { toasts.value = toasts.peek().filter((one) => one.id !== id); }, bad ? 9000 : 3500);
}
export function report(error) {
  if (error === CANCELLED) return;
  if (!(error instanceof Problem)) console.error(error);
  toast(error.message, true, error.fix);
}
export const Toasts = () => html`<div class="toasts" role="status" aria-live="polite">${toasts.value.map((one) => html`
  <div key=${one.id} class=${one.bad ? "toast bad" : "toast"}><${Text} v=${one.text} />${one.fix && html`<small><${Text} v=${one.fix} /></small>`}</div>`)}</div>`;

const question = signal(null);
export const CANCELLED = new Error("cancelled");
export const asking = () => question.peek() !== null;

/** Ask before an action: its title, what it does, and fields. Resolves to the values; rejects if it is cancelled. */
export function ask(options) {
  return new Promise((resolve, reject) => { question.value = { ...options, resolve, reject }; });
}

export function Question() {
  const asked = question.value;
  return asked && html`<${Asked} key=${asked.title} asked=${asked} />`;
}

function Asked({ asked }) {
  const dialog = useRef(null);
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  useLayoutEffect(() => {
    dialog.current.showModal();
    (dialog.current.querySelector("[autofocus]") ?? dialog.current.querySelector("input, textarea, select") ?? dialog.current.querySelector(".primary"))?.focus();
  }, []);
  const close = (error) => { question.value = null; if (error) asked.reject(error); };
  const submit = async (event) => {
    event.preventDefault();
    const values = {};
    for (const field of asked.fields ?? []) {
      const input = dialog.current.querySelector(`[name="${field.name}"]`);
      values[field.name] = field.type === "check" ? input.checked : input.value;
      if (field.required && !String(values[field.name]).trim()) { setProblem(new Error(`${field.label}: required`)); input.focus(); return; }
    }
    if (!asked.run) { question.value = null; asked.resolve(values); return; }
    setBusy(true);
    try { const found = await asked.run(values); question.value = null; asked.resolve(found); }
    catch (error) { setProblem(error); setBusy(false); }
  };
  return html`<dialog ref=${dialog} aria-labelledby="question" onCancel=${(event) => { event.preventDefault(); close(CANCELLED); }}>
    <form onSubmit=${submit} novalidate>
      <h2 id="question">${asked.title}</h2>
      ${asked.body && html`<div class="body">${asked.body}</div>`}
      ${(asked.fields ?? []).map((field) => html`<label key=${field.name} class=${field.type === "check" ? "check" : "field"}>
        ${field.type === "check" ? html`<input type="checkbox" name=${field.name} defaultChecked=${field.value} /><span>${field.label}</span>`
    : html`<span>${field.label}${!field.required && html` <small class="muted">optional</small>`}</span>
        ${field.type === "area" ? html`<textarea name=${field.name} rows=${field.rows ?? 4} placeholder=${field.placeholder} defaultValue=${field.value ?? ""} spellcheck=${false}></textarea>`
    : field.type === "select" ? html`<select name=${field.name}>${field.options.map((one) => html`<option key=${one} value=${one} selected=${one === field.value}>${plain(one)}</option>`)}</select>`
    : html`<input name=${field.name} type=${field.type ?? "text"} placeholder=${field.placeholder} defaultValue=${field.value ?? ""} autocomplete="off" list=${field.options && `${field.name}-list`} />
          ${field.options && html`<datalist id=${`${field.name}-list`}>${field.options.map((one) => html`<option key=${one} value=${one}></option>`)}</datalist>`}`}`}
      </label>`)}
      ${problem && html`<div class="problem" role="alert"><b><${Text} v=${problem.message} /></b>${problem.fix && html`<p><${Text} v=${problem.fix} /></p>`}</div>`}
      <footer><button type="button" class="button" onClick=${() => close(CANCELLED)}>Cancel</button>
        <button type="submit" class=${`button ${asked.danger ? "danger" : "primary"}`} disabled=${busy}>${asked.action ?? "OK"}</button></footer>
    </form></dialog>`;
}

export const REASON = { name: "reason", label: "Reason", placeholder: "for the audit log" };

/** Parse a text that a person typed as JSON; any other text is a string. */
export function typed(text, parse) {
  const given = text.trim();
  if (!given) return null;
  try { return parse(given); } catch { return given; }
}

// Pictures

export function Sparkline({ values, label, width = 96, height = 22 }) {
  if (!values?.length) return html`<span class="muted">–</span>`;
  const top = Math.max(1, ...values);
  const step = width / Math.max(1, values.length - 1);
  const points = values.map((value, index) => `${(index * step).toFixed(1)},${(height - 1 - (value / top) * (height - 3)).toFixed(1)}`);
  return html`<svg class="spark" role="img" aria-label=${label} width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`}>
    <polygon points=${`0,${height} ${points.join(" ")} ${width},${height}`} /><polyline points=${points.join(" ")} /></svg>`;
}

const nice = (top) => { const size = 10 ** Math.floor(Math.log10(top)); return size * [1, 2, 2.5, 5, 10].find((step) => step * size >= top); };

/** Lines over time. ``series``: name, colour variable, values; ``times`` in ms. The pointer shows one moment. */
export function Chart({ times, series, height = 140, format = number, label }) {
  const box = useRef(null);
  const [width, setWidth] = useState(600);
  const [at, setAt] = useState(null);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(() => setWidth(Math.max(200, box.current?.clientWidth ?? 600)));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  const left = 60, bottom = height - 18, top = nice(Math.max(1, ...series.flatMap((one) => one.values)));
  const first = times[0], span = Math.max(1, times.at(-1) - first);
  const x = (time) => left + ((time - first) / span) * (width - left - 8);
  const y = (value) => bottom - (value / top) * (bottom - 8);
  const parts = span > 10 * 60e3 ? [0, 0.25, 0.5, 0.75, 1] : times.length > 1 ? [0, 1] : [0];
  const marks = parts.map((part) => first + part * span);
  const move = (event) => {
    const time = first + ((event.clientX - box.current.getBoundingClientRect().left - left) / (width - left - 8)) * span;
    let best = 0;
    times.forEach((one, index) => { if (Math.abs(one - time) < Math.abs(times[best] - time)) best = index; });
    setAt(best);
  };
  const shown = at !== null && at < times.length ? at : times.length - 1;
  return html`<figure class="chart" ref=${box}><svg role="img" aria-label=${label} width=${width} height=${height} onPointerMove=${move} onPointerLeave=${() => setAt(null)}>
    ${[0, 0.5, 1].map((part) => html`<line key=${part} class="grid" x1=${left} x2=${width} y1=${y(part * top)} y2=${y(part * top)} /><text x=${left - 8} y=${y(part * top) + 4} class="end">${format(part * top)}</text>`)}
    ${marks.map((time, index) => html`<text key=${index} x=${x(time)} y=${height - 3} class=${index === 0 ? "" : index === marks.length - 1 ? "end" : "mid"}>${clock(time).slice(0, 5)}</text>`)}
    ${series.map((one) => html`<polyline key=${one.name} class=${one.tone} points=${one.values.map((value, index) => `${x(times[index]).toFixed(1)},${y(value).toFixed(1)}`).join(" ")} />`)}
    ${at !== null && html`<line class="cursor" x1=${x(times[shown])} x2=${x(times[shown])} y1="4" y2=${bottom} />`}</svg>
    <figcaption>${series.map((one) => html`<span key=${one.name}><i class=${`swatch ${one.tone}`}></i>${one.name} <b>${format(one.values[shown] ?? 0)}</b></span>`)}<span>${at !== null ? stamp(times[shown]) : ""}</span></figcaption></figure>`;
}

export { Fragment };
