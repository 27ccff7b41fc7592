// Agents: a table with facets, and a page per agent.
import { useMemo } from "./vendor.js";
import { change, link, listParam, mayOperate, param, path, query, readAgents, setParams, useData } from "./core.js";
import { Address, Ago, ask, At, Button, Card, Chips, Clear, duration, Empty, Facts, html, Json, Load, number, plural, Progress, REASON, Ref, Search, Select, Status, Tabs, Tag, Text, toast } from "./ui.js";
import { Table } from "./table.js";
import { Evidence } from "./now.js";
import { compose } from "./messages.js";
import { EventList } from "./events.js";
import { MessageTable } from "./messages.js";

const STATUSES = ["running", "suspect", "failed", "pending", "spawning", "completed", "stopped"];
const FILTERS = ["q", "status", "type", "session", "kind"];

const COLUMNS = [
  { key: "id", title: "Agent", width: "minmax(160px, 2fr)", narrow: "minmax(0, 1fr)", sort: (one) => one.id,
    cell: (one) => html`<${Ref} kind="agent" id=${one.id} />${one.name !== one.id && html`<small class="muted"><${Text} v=${one.name} max=${80} /></small>`}` },
  { key: "status", title: "Status", width: "110px", narrow: "96px", sort: (one) => STATUSES.indexOf(one.status), cell: (one) => html`<${Status} s=${one.status} />` },
  { key: "type", title: "Type", width: "120px", sort: (one) => one.type, cell: (one) => html`<${Text} v=${one.type} />` },
  { key: "session", title: "Session", width: "minmax(110px, 1fr)", sort: (one) => one.session, cell: (one) => html`<${Ref} kind="session" id=${one.session} />` },
  { key: "progress", title: "Progress", width: "120px", sort: (one) => one.progress, cell: (one) => html`<${Progress} value=${one.progress} />` },
  { key: "note", title: "Doing", width: "minmax(120px, 2fr)", cell: (one) => (one.error && one.status !== "running" ? html`<span class="bad-text"><${Text} v=${one.error} max=${160} /></span>` : html`<${Text} v=${one.note} max=${160} />`) },
  { key: "seen", title: "Seen", width: "96px", narrow: "84px", end: true, sort: (one) => one.seen ?? one.updated, cell: (one) => html`<${Ago} at=${one.seen ?? one.updated} />` },
];

function List() {
  const all = useData("agents", { topics: ["agents"], every: 4, slowest: 10, read: readAgents });
  const q = param("q").toLowerCase();
  const chosen = { status: listParam("status"), type: param("type"), session: param("session"), kind: param("kind") };
  const items = all.data.value?.items ?? [];
  const counts = useMemo(() => {
    const found = {};
    for (const one of items) found[one.status] = (found[one.status] ?? 0) + 1;
    return found;
  }, [items]);
  const options = useMemo(() => ({
    types: [...new Set(items.map((one) => one.type))].sort(), sessions: [...new Set(items.map((one) => one.session).filter(Boolean))].sort().slice(0, 500), kinds: [...new Set(items.map((one) => one.kind))].sort(),
  }), [items]);
  const rows = useMemo(() => items.filter((one) => (!chosen.status.length || chosen.status.includes(one.status)) && (!chosen.type || one.type === chosen.type)
    && (!chosen.session || one.session === chosen.session) && (!chosen.kind || one.kind === chosen.kind)
    && (!q || [one.id, one.name, one.note, one.error, one.model, one.milestone, one.parent, ...one.capabilities].some((text) => text && String(text).toLowerCase().includes(q)))), [items, q, chosen.status.join(), chosen.type, chosen.session, chosen.kind]);
  return html`<div class="page full"><header class="head"><h1>Agents</h1><span class="muted">${all.data.value && (rows.length === items.length ? plural(items.length, "agent") : `${number(rows.length)} of ${plural(items.length, "agent")}`)}</span><span class="grow"></span>
      ${mayOperate.value && (counts.completed || counts.stopped) && html`<${Button} onClick=${() => clear((counts.completed ?? 0) + (counts.stopped ?? 0))}>Clear ended …</${Button}>`}</header>
    <div class="filters"><${Search} label="Search agents" /><${Chips} name="status" label="Status" options=${STATUSES.filter((one) => counts[one] || chosen.status.includes(one)).map((one) => [one, counts[one] ?? 0])} />
      <${Select} name="type" label="Type" options=${options.types} /><${Select} name="session" label="Session" options=${options.sessions} />${options.kinds.length > 1 && html`<${Select} name="kind" label="Kind" options=${options.kinds} />`}<${Clear} names=${FILTERS} /></div>
    <${Load} from=${all}>${() => html`<${Table} label="Agents" rows=${rows} columns=${COLUMNS} href=${(one) => link("agents", one.id)} empty="No agent matches" hint="Agents appear when they register, or when one is expected." />`}</${Load}></div>`;
}

async function clear(count) {
  await ask({ title: `Delete ${plural(count, "ended agent")}?`, action: `Delete ${count}`, danger: true,
    body: html`<p>Agents that completed or stopped are deleted, with their state and checkpoints. This cannot be undone.</p>`,
    fields: [{ name: "older", label: "Only those that ended more than … minutes ago", type: "number", value: "0" }],
    run: async ({ older }) => { const found = await change("POST", "agents/clear", { older_than: Number(older || 0) * 60 }, ["agents"]); toast(`Deleted ${plural(found.agents.length, "agent")}`); } });
}

async function stop(one, held) {
  await ask({ title: `Stop ${one.id}?`, action: "Stop the agent", danger: true, fields: [REASON],
    body: html`<p>It is marked stopped, its next call is refused, and ${held ? plural(held, "message") : "nothing"} that it holds is delivered to others.</p>`,
    run: async ({ reason }) => { await change("POST", path`agents/${one.id}/stop`, { reason: reason || null }, ["agents", `agent:${one.id}`]); toast(`Stopped ${one.id}`); } });
}

const REACHED = { now: "now: a process waits for its messages", next_tool: "after its next tool call", next_turn: "with its next turn", when_started: "when it is started", unknown: "unknown: no adapter declared how to wake it" };

/** Direct a running agent, and wait until it has seen the message. */
async function steer(one) {
  await ask({ title: `Steer ${one.id}`, action: "Steer",
    body: html`<p>The text is delivered to the agent at its next tool call, with the highest priority. This waits up to 20 seconds until the agent has seen it.</p>`,
    fields: [{ name: "text", label: "What the agent is to do", type: "area", rows: 4, required: true }, { name: "stop_after", label: "Stop after the current step", type: "check" }],
    run: async ({ text, stop_after }) => {
      const found = await change("POST", path`agents/${one.id}/steer`, { text, stop_after, timeout: 20 }, ["messages"]);
      if (found.seen) toast(`${one.id} has seen it`);
      else toast(`Not seen yet. ${one.id} is ${found.reach.status}. Messages reach it: ${REACHED[found.reach.reach]}`, true, "The message stays in its mailbox.");
    } });
}

async function takeOver(one) {
  await ask({ title: `Take over ${one.id}?`, action: "Take over", danger: true,
    body: html`<p>A new incarnation ${one.epoch + 1} is registered over HTTP, and the present one is fenced: its next call is refused. Use it for an agent whose process hangs.</p>`,
    run: async () => { await change("POST", path`agents/${one.id}/register`, { type: one.type, takeover: true, session: one.session }, ["agents", `agent:${one.id}`]); toast(`Took over ${one.id}`); } });
}

async function remove(one) {
  await ask({ title: `Delete ${one.id}?`, action: "Delete 1 agent", danger: true, body: html`<p>The agent is deleted with its state and checkpoints. This cannot be undone.</p>`,
    run: async () => { await change("DELETE", path`agents/${one.id}`, undefined, ["agents"]); location.hash = link("agents"); } });
}

const LIVE = new Set(["running", "suspect", "spawning", "pending"]);

function Page({ id }) {
  const topic = `agent:${id}`;
  const agent = useData(path`agents/${id}`, { topics: [topic], every: 5, slowest: 10 });
  const waiting = useData(query("messages", { to: id, status: "queued,scheduled", limit: 200 }), { topics: ["messages"], every: 10 });
  const held = useData(query("messages", { holder: id, limit: 200 }), { topics: ["messages"], every: 10 });
  const reach = useData(path`agents/${id}/reach`, { topics: [topic], every: 15 });
  const tab = param("tab") || "overview";
  return html`<${Load} from=${agent}>${(one) => {
    const leases = held.data.value?.items ?? [];
    const boxed = waiting.data.value?.items ?? [];
    return html`<div class="page"><header class="head"><a class="up" href=${link("agents")}>Agents</a><h1><${Text} v=${one.id} /></h1><${Status} s=${one.status} /><span class="grow"></span>
      ${mayOperate.value && html`<div class="actions"><${Button} icon="send" onClick=${() => compose({ to: one.id })}>Send</${Button}>
        ${LIVE.has(one.status) && html`<${Button} onClick=${() => steer(one)}>Steer …</${Button}><${Button} onClick=${() => takeOver(one)}>Take over …</${Button}><${Button} kind="danger-quiet" onClick=${() => stop(one, leases.length)}>Stop …</${Button}>`}
        ${!["running", "suspect", "spawning"].includes(one.status) && html`<${Button} kind="danger-quiet" onClick=${() => remove(one)}>Delete …</${Button}>`}</div>`}</header>
      <${Tabs} label="Parts" items=${[["overview", "Overview"], ["messages", "Messages"], ["state", "State"], ["checkpoints", "Checkpoints"], ["events", "Events"]]} />
      ${tab === "overview" && html`
        ${(one.error || one.evidence) && html`<div class=${`callout ${one.status === "failed" ? "bad" : "warn"}`}><b><${Text} v=${one.error ?? "suspect"} max=${600} /></b> <${Evidence} of=${one.evidence} /></div>`}
        <div class="columns"><${Card} title="Record"><${Facts} of=${[
      ["Type", html`<${Text} v=${one.type} /> <span class="muted">${one.kind}</span>`], ["Name", one.name !== one.id && html`<${Text} v=${one.name} />`], ["Session", one.session && html`<${Ref} kind="session" id=${one.session} />`], ["Milestone", one.milestone && html`<${Text} v=${one.milestone} />`],
      ["Parent", one.parent && html`<${Ref} kind="agent" id=${one.parent} />`], ["Model", one.model && html`<${Text} v=${one.model} />`], ["Capabilities", one.capabilities.length > 0 && one.capabilities.map((name) => html`<${Tag} key=${name}><${Text} v=${name} /></${Tag}> `)],
      ["Load", one.load], ["Estimate", one.estimate && duration(one.estimate * 1000)], ["Process", one.process], ["Incarnation", one.epoch]]} />
          ${one.prompt && html`<h3>Prompt</h3><div class="prose"><${Text} v=${one.prompt} max=${4000} /></div>`}</${Card}>
        <${Card} title="Activity"><${Facts} of=${[
      ["Progress", html`<${Progress} value=${one.progress} />`], ["Doing", one.note && html`<${Text} v=${one.note} />`], ["Seen", html`<${Ago} at=${one.seen} />`], ["Messages reach it", reach.data.value && REACHED[reach.data.value.reach]], ["Silent until", one.busy_until_wall && html`<${Ago} at=${one.busy_until_wall} future />`], ["Patience", one.patience && duration(one.patience * 1000)],
      ["Started", html`<${At} at=${one.started} />`], ["Updated", html`<${At} at=${one.updated} />`], ["Ended", one.ended && html`<${At} at=${one.ended} />`]]} />
          ${Object.keys(one.metadata).length > 0 && html`<h3>Metadata</h3><${Json} value=${one.metadata} />`}</${Card}></div>
        <${Card} title="Leases" aside=${plural(leases.length, "message")}>${leases.length ? html`<ul class="rows">${leases.slice(0, 30).map((m) => html`<li key=${m.id}><${Status} s="leased" /><a class="ref" href=${link("messages", m.message_id)}><${Text} v=${m.type} /></a><span class="what">from <${Address} to=${m.sender} /> · attempt ${m.attempts} of ${m.max_attempts}</span><span class="muted end"><${Ago} at=${m.leased_at ?? m.created} /></span></li>`)}</ul>` : html`<${Empty} title="It holds no message" />`}</${Card}>
        <${Card} title="Mailbox" aside=${plural(boxed.length, "waiting message")}>${boxed.length ? html`<ul class="rows">${boxed.slice(0, 30).map((m) => html`<li key=${m.id}><${Status} s=${m.status} /><a class="ref" href=${link("messages", m.message_id)}><${Text} v=${m.type} /></a><span class="what">from <${Address} to=${m.sender} /> · priority ${m.priority}</span><span class="muted end"><${Ago} at=${m.created} /></span></li>`)}</ul>` : html`<${Empty} title="No message waits" />`}</${Card}>`}
      ${tab === "messages" && html`<${Tabs} name="box" label="Direction" items=${[["to", "To it"], ["from", "From it"]]} /><${MessageTable} filters=${param("box") === "from" ? { sender: id } : { to: id }} fill=${false} />`}
      ${tab === "state" && html`<${OwnState} scope=${id} />`}
      ${tab === "checkpoints" && html`<${Checkpoints} owner=${id} />`}
      ${tab === "events" && html`<${EventList} subject=${topic} fill=${false} />`}</div>`;
  }}</${Load}>`;
}

export function OwnState({ scope }) {
  const found = useData(query(path`state/${scope}/entries`, { limit: 500 }), { topics: ["state"], every: 10 });
  return html`<${Load} from=${found}>${(page) => (page.items.length ? html`<${Card}><ul class="rows">${page.items.map((one) => html`<li key=${one.key} class="tall"><b class="mono"><${Text} v=${one.key} /></b><div class="what"><${Json} value=${one.value} depth=${1} /></div><span class="muted end">v${one.version} · <${Ago} at=${one.updated} /></span></li>`)}</ul></${Card}>` : html`<${Empty} title="No state" />`)}</${Load}>`;
}

export function Checkpoints({ owner, kind }) {
  const found = useData(query("checkpoints", { owner, kind, limit: 200 }), { topics: ["checkpoints"], every: 15 });
  const open = param("open");
  const chosen = useData(open ? path`checkpoints/${open}` : null);
  return html`<${Load} from=${found}>${(page) => (page.items.length ? html`<${Card}><ul class="rows">${page.items.map((one) => html`<li key=${one.id} class="tall"><button type="button" class="j-fold" aria-expanded=${String(open === String(one.id))} aria-label=${`Checkpoint ${one.id}`} onClick=${() => setParams({ open: open === String(one.id) ? "" : one.id })}>${open === String(one.id) ? "▾" : "▸"}</button><b><${Text} v=${one.name} /></b><span class="what"><span class="muted">${one.id} · ${number(one.size)} bytes${one.files ? ` · ${plural(one.files, "file")}` : ""}</span> <${Text} v=${one.notes} />
      ${open === String(one.id) && html`<${Load} from=${chosen}>${(full) => html`<${Json} value=${full.snapshot} /> ${full.files.length > 0 && html`<${Json} value=${full.files} depth=${1} label="files" />`}`}</${Load}>`}</span><span class="muted end"><${Ago} at=${one.created} /></span></li>`)}</ul></${Card}>` : html`<${Empty} title="No checkpoint" />`)}</${Load}>`;
}

export default function Agents({ parts }) {
  return parts.length ? html`<${Page} key=${parts[0]} id=${parts[0]} />` : html`<${List} />`;
}
