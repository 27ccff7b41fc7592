// What every screen uses: JSON with exact integers, the API, the view in the URL, preferences, live data.
import { batch, computed, effect, signal, useEffect, useMemo } from "./vendor.js";

// JSON

/** An integer that a JavaScript number cannot hold. */
export class Big {
  constructor(text) { this.text = text; }
  toString() { return this.text; }
}

const MARK = `\ue000${Math.random().toString(36).slice(2)}:`;
const TOKENS = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

/** Parse JSON; integers beyond 2^53 become Big. */
export function parseJson(text) {
  if (!/\d{16}/.test(text)) return JSON.parse(text);
  const marked = text.replace(TOKENS, (token) =>
    token.length > 15 && token[0] !== '"' && /^-?\d+$/.test(token) && !Number.isSafeInteger(Number(token))
      ? `"${MARK}${token}"` : token);
  return JSON.parse(marked, (_, value) =>
    typeof value === "string" && value.startsWith(MARK) ? new Big(value.slice(MARK.length)) : value);
}

/** The opposite of parseJson. */
export function toJson(value, indent = 0, level = 0) {
  if (value instanceof Big) return value.text;
  if (value === null || typeof value !== "object") return JSON.stringify(value) ?? "null";
  const pad = indent ? `\n${" ".repeat(indent * (level + 1))}` : "";
  const end = indent ? `\n${" ".repeat(indent * level)}` : "";
  const parts = Array.isArray(value)
    ? value.map((one) => toJson(one, indent, level + 1))
    : Object.entries(value).filter(([, one]) => one !== undefined)
      .map(([key, one]) => `${JSON.stringify(key)}:${indent ? " " : ""}${toJson(one, indent, level + 1)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  return parts.length ? `${open}${pad}${parts.join(`,${pad}`)}${end}${close}` : open + close;
}

// The API

const ROOT = new URL("api/v1/", location.origin + location.pathname.replace(/[^/]*$/, ""));
const PARAMETER = {
  agents: "agent", tasks: "task", sessions: "session", state: "scope", entries: "key", documents: "name",
  messages: "message_id", checkpoints: "checkpoint", versions: "version",
};

/** Build a path: names are encoded; "." and "..", which browsers remove from paths, go into the query. */
export function path(strings, ...names) {
  const query = [];
  let found = strings[0];
  names.forEach((name, index) => {
    let text = String(name);
    if (text === "." || text === ".." || text === "~") {
      const segment = strings[index].replace(/\/$/, "").split("/").pop();
      query.push(`${PARAMETER[segment] ?? "id"}=${encodeURIComponent(text)}`);
      text = "~";
    }
    found += encodeURIComponent(text) + strings[index + 1];
  });
  return query.length ? `${found}${found.includes("?") ? "&" : "?"}${query.join("&")}` : found;
}

/** Append query parameters; those that are empty are left out. */
export function query(base, given) {
  const parts = Object.entries(given)
    .filter(([, value]) => value !== undefined && value !== null && value !== "" && value !== false)
    .map(([key, value]) => `${key}=${encodeURIComponent(value)}`);
  return parts.length ? `${base}${base.includes("?") ? "&" : "?"}${parts.join("&")}` : base;
}

/** A refusal by the server, as it describes it, or a server that does not answer. */
export class Problem extends Error {
  constructor(status, found) {
    super(found.detail ?? `the server answered ${status}`);
    this.status = status;
    this.code = found.code ?? "unknown";
    this.fix = found.fix ?? null;
    this.retry = status === 0 || status === 503 || status === 429;
  }
}

export const identity = signal(null);
/** The state of the stream: connecting, live or lost. */
export const connection = signal("connecting");
/** The reason why nothing can be read: the server does not answer, or cannot reach its store. */
export const trouble = signal(null);
const SLOW = 6000;
let answered = 0;
let skew = 0;
export const now = () => Date.now() + skew;

export async function call(method, target, body, headers = {}, options = {}) {
  let response;
  const began = Date.now();
  // A server that has lost its store tries to reach it before it reports that.
  const slow = setTimeout(() => {
    if (Date.now() - answered >= SLOW) trouble.value ??= new Problem(0, { code: "slow", detail: `the server has not answered for ${SLOW / 1000} s` });
  }, SLOW);
  try {
    response = await fetch(new URL(target, ROOT), {
      method,
      headers: {
        Accept: "application/json", "X-Agentbus": "1", ...headers,
        ...(body === undefined ? {} : { "Content-Type": "application/json" }),
      },
      body: body === undefined ? undefined : toJson(body),
      credentials: "same-origin", redirect: "error", ...options,
    });
  } catch {
    throw (trouble.value = new Problem(0, { code: "unreachable", detail: "the server does not answer" }));
  } finally {
    clearTimeout(slow);
  }
  const date = Date.parse(response.headers.get("Date") ?? "");
  // The time of the header is that of the request.
  if (date && Date.now() - began < 1000) skew = Math.abs(date - Date.now()) > 3000 ? date - Date.now() : 0;
  const text = await response.text();
  let found = {};
  try {
    found = text ? parseJson(text) : {};
  } catch {
    found = { detail: "the server sent no JSON" };
  }
  if (!response.ok) {
    if (response.status === 401) identity.value = false;
    const problem = new Problem(response.status, found);
    if (response.status === 503) trouble.value = problem;
    throw problem;
  }
  answered = Date.now();
  trouble.value = null;
  return found;
}

export const get = (target) => call("GET", target);
export const post = (target, body = {}) => call("POST", target, body);

// The view is in the URL

function read() {
  const [place, search = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [screen = "now", ...parts] = place.split("/").map((part) => {
    try { return decodeURIComponent(part); } catch { return part; }
  });
  return { screen: screen || "now", parts, params: new URLSearchParams(search), hash: location.hash };
}

export const route = signal(read());
export const link = (...parts) => `#/${parts.map((part) => encodeURIComponent(part)).join("/")}`;
export const place = () => route.value.hash.split("?")[0] || "#/now";
export const param = (name) => route.value.params.get(name) ?? "";
export const listParam = (name) => param(name).split(",").filter(Boolean);

/** Change parameters of the view in place; empty ones are removed. */
export function setParams(changes) {
  const params = new URLSearchParams(route.peek().params);
  for (const [name, value] of Object.entries(changes)) {
    const text = Array.isArray(value) ? value.join(",") : value;
    if (text === "" || text === null || text === undefined || text === false) params.delete(name);
    else params.set(name, text);
  }
  const search = params.toString().replaceAll("%2C", ",").replaceAll("%3A", ":").replaceAll("%2F", "/");
  const next = `${route.peek().hash.split("?")[0] || "#/now"}${search ? `?${search}` : ""}`;
  if (next === route.peek().hash) return;
  history.replaceState(null, "", next);
  route.value = read();
  remember();
}

export function toggleParam(name, value) {
  const set = new Set(listParam(name));
  if (!set.delete(value)) set.add(value);
  setParams({ [name]: [...set] });
}

export function go(target) {
  if (location.hash === target) return;
  location.hash = target;
}

addEventListener("hashchange", () => {
  if (location.hash.startsWith("#token=")) return location.reload();
  route.value = read();
  restore();
});

// Preferences: on the server for an operator, in the browser for others. The tab keeps a change until it is saved.

export const preferences = signal({ theme: "auto", views: {} });
let unsaved = null;
let known = false;
let saving = 0;
const KEY = "view";
const local = () => `agentbus:${identity.peek().bus}:${identity.peek().operator}`;
const entries = () => path`state/${`dashboard:${identity.peek().operator}`}/entries`;
const storage = () => (mayOperate.peek() ? sessionStorage : localStorage);
const merge = (base, changes) => ({ ...base, ...changes, views: { ...base?.views, ...changes?.views } });

async function loadPreferences() {
  let found = null;
  known = false;
  try {
    if (mayOperate.peek()) found = (await get(query(entries(), { prefix: KEY, limit: 1 }))).items.find((one) => one.key === KEY)?.value;
    known = true;
  } catch (error) {
    if (error.retry) setTimeout(loadPreferences, 2000);
  }
  try { unsaved = JSON.parse(storage().getItem(local())); } catch { unsaved = null; }
  preferences.value = merge(merge({ theme: "auto" }, found), unsaved);
  savePreferences();
  restore();
}

function keep(changes) {
  unsaved = changes;
  try { storage().setItem(local(), toJson(changes)); } catch { /* not permitted */ }
}

export function setPreferences(changes) {
  keep(merge(unsaved, changes));
  preferences.value = merge(preferences.peek(), changes);
  clearTimeout(saving);
  saving = setTimeout(savePreferences, 400);
}

addEventListener("pagehide", savePreferences);

/** Save the changes, unless the rest is unknown, which it would replace. */
async function savePreferences() {
  const changes = unsaved;
  if (!known || !changes || !mayOperate.peek()) return;
  try {
    await call("PUT", `${entries()}/${KEY}`, { value: preferences.peek(), type: "user_data" }, {}, { keepalive: true });
    if (unsaved === changes) keep(null);
  } catch { /* kept */ }
}

/** Remember the parameters of a list, so that they are there when the operator comes back. */
function remember() {
  const { screen, parts, params } = route.peek();
  if (parts.length) return;
  const search = params.toString();
  if ((preferences.peek().views[screen] ?? "") !== search) {
    setPreferences({ views: { [screen]: search } });
  }
}

/** Apply the remembered parameters to a list that was opened without any. */
function restore() {
  const { screen, parts, params } = route.peek();
  const search = preferences.peek().views[screen];
  if (parts.length) return;
  if ([...params].length) return remember();
  if (!search) return;
  history.replaceState(null, "", `#/${screen}?${search}`);
  route.value = read();
}

effect(() => {
  const theme = preferences.value.theme;
  if (theme === "auto") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.dataset.theme = theme;
});

// Time

export const tick = signal(Date.now());
setInterval(() => { if (!document.hidden) { tick.value = now(); refreshOld(); } }, 1000);

// Data

const resources = new Map();
export const paused = signal(false);
/** Changes that arrived while updates were paused. */
export const held = signal(0);

/** Reads that wait for the others; then one after the other. */
const late = [];
let reading = 0;
const readLate = () => { if (!reading && late.length) late.sort((a, b) => a.last - b.last).shift().load(); };

/** Counts what a list that is updated in part would not see: deletions, and a lost connection. */
let generation = 0;

class Resource {
  constructor(target, topics, every, slowest, read) {
    Object.assign(this, { target, topics, every, slowest, read, users: 0, at: 0, took: 0, timer: 0, busy: false, again: false });
    this.data = signal(undefined);
    this.error = signal(null);
  }
  async load() {
    clearTimeout(this.timer);
    this.timer = 0;
    if (this.busy) { this.again = true; return; }
    this.busy = true;
    reading++;
    const begun = Date.now();
    try {
      const found = await this.read((part) => { if (this.data.peek() === undefined) this.data.value = part; }, this.data.peek());
      batch(() => { this.data.value = found; this.error.value = null; });
    } catch (error) {
      if (!(error instanceof Problem)) console.error(error);
      this.error.value = error;
      if (error.retry) this.schedule(2000);
    } finally {
      this.at = Date.now();
      this.took = this.at - begun;
      this.busy = false;
      reading--;
      readLate();
    }
    if (this.again) { this.again = false; this.schedule(300); }
  }
  schedule(wait) { if (!this.timer) this.timer = setTimeout(() => this.load(), wait); }
  /** Read again soon, at most once a second, and less often if it takes long. */
  touch() {
    if (this.users) this.schedule(Math.max(30, Math.max(1000, 10 * this.took) - (Date.now() - this.at)));
    else this.at = 0;
  }
}

/** Return a resource, which is read now, when an event of its topics arrives, and at an interval in seconds: ``every``, or up to
 * ``slowest`` if it is expensive. */
export function resource(target, { topics = [], every = 0, slowest = 60, read: how } = {}) {
  let found = resources.get(target);
  if (!found) {
    if (resources.size > 200) for (const [key, one] of resources) if (!one.users) resources.delete(key);
    found = new Resource(target, topics, every, slowest, how ?? (() => get(target)));
    resources.set(target, found);
  }
  return found;
}

/** Use a resource in a component; null stands for no data. ``last``: the higher, the later it is read. */
export function useData(target, options = {}) {
  const found = useMemo(() => (target ? resource(target, options) : NOTHING), [target]);
  useEffect(() => {
    if (found === NOTHING) return undefined;
    found.users++;
    const load = () => { clearTimeout(timer); if (found.users && Date.now() - found.at > 500) found.load(); else readLate(); };
    if (options.last) late.push({ last: options.last, load });
    const timer = setTimeout(() => (options.last ? readLate() : load()), options.last ? 150 : 0);
    return () => { found.users--; if (!options.last) clearTimeout(timer); };
  }, [found]);
  return found;
}
const NOTHING = { data: signal(undefined), error: signal(null), load() {} };

function invalidate(topics) {
  if (paused.peek()) { held.value += 1; pending = new Set([...pending, ...topics]); return; }
  for (const one of resources.values()) if (one.topics.some((topic) => topics.has(topic))) one.touch();
}
let pending = new Set();

export function setPaused(on) {
  paused.value = on;
  if (!on) {
    const topics = pending;
    pending = new Set();
    held.value = 0;
    invalidate(topics);
    reload();
  }
}

/** Read everything on screen again. */
function reload() {
  generation++;
  for (const one of resources.values()) { if (one.users) one.load(); else one.at = 0; }
}

function refreshOld() {
  if (paused.peek() || connection.peek() !== "live") return;
  for (const one of resources.values()) {
    // An open dashboard must cost the server next to nothing.
    const wait = Math.max(one.every * 1000, Math.min(one.slowest * 1000, 200 * one.took));
    if (one.users && one.every && !one.busy && Date.now() - one.at > wait) one.load();
  }
}

/** Read all pages of a list, the first one short, so that it is seen soon. */
export async function readAll(target, publish, most = 20000) {
  const items = [];
  let cursor = null;
  do {
    const page = await get(query(target, { limit: cursor ? 1000 : 100, cursor }));
    items.push(...page.items);
    cursor = page.cursor;
    if (cursor && items.length === page.items.length) publish({ items: [...items], more: true });
  } while (cursor && items.length < most);
  return { items, more: Boolean(cursor) };
}

/** Read the messages of a period, newest first, as many as the limit. */
export async function readSpans(start, end, most) {
  const items = [];
  let cursor = null;
  do {
    const page = await get(query("message-spans", { start: Math.floor(start), end: Math.ceil(end), limit: 1000, cursor }));
    items.push(...page.items);
    cursor = page.cursor;
  } while (cursor && items.length < most);
  return { items, whole: !cursor };
}

const SMALL = 200;
const WHOLE = 60e3;
const OVERLAP = 10e3;

/** Read all agents; of a long list that is known, only those that have changed since. */
export async function readAgents(publish, before) {
  const begun = now();
  const whole = async () => ({ ...(await readAll("agents", publish)), generation, read: begun, begun });
  if (!before?.begun || before.items.length < SMALL || before.generation !== generation || begun - before.begun > WHOLE * Math.ceil(before.items.length / 2000)) return whole();
  const page = await get(query("agents", { updated_after: before.read - OVERLAP, limit: 1000 }));
  if (page.cursor) return whole();
  const known = new Map(before.items.map((one) => [one.id, one]));
  const changed = page.items.filter((one) => toJson(known.get(one.id)) !== toJson(one));
  before.read = begun;
  if (!changed.length) return before;
  changed.forEach((one) => known.set(one.id, one));
  return { ...before, items: [...known.values()].sort((a, b) => (a.id < b.id ? -1 : 1)) };
}

/** Run a change, then read again what it concerns. */
export async function change(method, target, body, topics = [], headers = {}) {
  const found = await call(method, target, body, headers);
  for (const one of resources.values()) if (topics.some((topic) => one.topics.includes(topic))) one.touch();
  return found;
}

// The stream: one per tab; a hidden tab has none

let source = null;
let last = null;
let follows = false;
let attempt = 0;
let retry = 0;
const RELATED = { task: ["tasks"], agent: ["agents"], session: ["sessions", "agents"], message: ["messages"],
  process: ["agents"], mailbox: ["messages"], state: ["state"], document: ["sessions"], checkpoint: ["checkpoints"] };

/** A change of the live feed: its events, its messages, and whether some were missed. */
function receive(event, change) {
  if (event.lastEventId) last = event.lastEventId;
  const topics = new Set();
  for (const one of change.events) {
    topics.add("any").add("events").add(`${one.subject_kind}:${one.subject}`);
    (RELATED[one.subject_kind] ?? []).forEach((topic) => topics.add(topic));
    if (one.kind.startsWith("messages_")) topics.add("messages");
    if (one.kind.startsWith("approval_")) topics.add("tasks");
    if (one.kind === "agent_deleted") generation++;
  }
  if (change.messages.length) topics.add("messages");
  if (change.missed) reload();
  else if (topics.size) invalidate(topics);
}

function openStream() {
  clearTimeout(retry);
  source?.close();
  source = null;
  if (document.hidden || !identity.peek()) return;
  last ??= identity.peek().cursor;
  const target = new URL(query("live", { after: last }), ROOT);
  const opened = source = new EventSource(target);
  // The first stream starts before everything that was read.
  const again = Boolean(follows);
  follows = true;
  opened.onopen = () => {
    attempt = 0;
    const lost = again && connection.peek() !== "live";
    connection.value = "live";
    if (lost) reload();
  };
  opened.addEventListener("change", (event) => receive(event, parseJson(event.data)));
  opened.addEventListener("problem", () => lost(opened));
  opened.onerror = () => lost(opened);
}

function lost(opened) {
  if (source !== opened) return;
  opened.close();
  source = null;
  connection.value = "lost";
  retry = setTimeout(async () => {
    attempt++;
    try { await get("identity"); } catch (error) {
      if (error.status === 401) return;
      return lost((source = opened));
    }
    openStream();
  }, Math.min(4000, 300 * 2 ** attempt));
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    clearTimeout(retry);
    source?.close();
    source = null;
    connection.value = "connecting";
  } else {
    attempt = 0;
    openStream();
  }
});
addEventListener("pagehide", () => source?.close());
addEventListener("online", () => openStream());

// Sign in

export async function signIn(token) {
  identity.value = await call("POST", "login", { token });
  await start();
}

export async function signOut() {
  await post("logout");
  source?.close();
  identity.value = false;
}

export async function start() {
  const token = /^#token=(.+)$/.exec(location.hash)?.[1];
  if (token) {
    history.replaceState(null, "", location.pathname);
    route.value = read();
    try { identity.value = await call("POST", "login", { token: decodeURIComponent(token) }); } catch { /* below */ }
  }
  if (!identity.peek()) {
    try { identity.value = await get("identity"); } catch (error) {
      if (error.status === 401 || error.status === 403) { identity.value = false; return; }
      connection.value = "lost";
      setTimeout(start, 1000);
      return;
    }
  }
  await loadPreferences();
  openStream();
}

export const mayOperate = computed(() => Boolean(identity.value?.may_operate));
