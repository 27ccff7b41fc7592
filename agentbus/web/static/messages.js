// Messages: a faceted list, threads, payloads, and a form to send as an operator.
import { useMemo, useRef, useState } from "./vendor.js";
import { change, get, link, listParam, mayOperate, param, parseJson, path, query, useData } from "./core.js";
import { Address, Ago, ask, At, Button, Card, Chips, Clear, duration, Empty, Facts, Field, html, Json, Load, number, plural, Ref, report, Select, Status, Text, toast, typed } from "./ui.js";
import { Table } from "./table.js";
import { requeue } from "./now.js";

const STATUSES = ["queued", "leased", "scheduled", "acked", "dead", "expired"];
const FILTERS = ["status", "type", "sender", "to", "session", "correlation"];
const PAGE = 100;

const COLUMNS = [
  { key: "id", title: "Id", width: "76px", cell: (one) => html`<a class="ref mono" href=${link("messages", one.message_id)}>${one.id}</a>` },
  { key: "type", title: "Type", width: "minmax(110px, 1fr)", narrow: "minmax(0, 1fr)", cell: (one) => html`<a class="ref" href=${link("messages", one.message_id)}><${Text} v=${one.type} /></a>` },
  { key: "status", title: "Status", width: "104px", narrow: "92px", cell: (one) => html`<${Status} s=${one.status} />` },
  { key: "from", title: "From", width: "minmax(110px, 1fr)", cell: (one) => html`<${Address} to=${one.sender} />` },
  { key: "to", title: "To", width: "minmax(110px, 1fr)", narrow: "minmax(0, 1fr)", cell: (one) => html`<${Address} to=${one.recipient} />` },
  { key: "payload", title: "Payload", width: "minmax(140px, 2fr)", cell: (one) => html`<span class="mono muted">${one.error ? html`<span class="bad-text"><${Text} v=${one.error} max=${120} /></span>` : html`<${Text} v=${one.payload} max=${120} />`}</span>` },
  { key: "attempts", title: "Tries", width: "56px", end: true, cell: (one) => (one.attempts ? `${one.attempts}/${one.max_attempts}` : "–") },
  { key: "created", title: "Sent", width: "100px", end: true, cell: (one) => html`<${Ago} at=${one.created} />` },
];

/** A list that is read page by page, and from its start again when something changes. */
export function useList(target, filters, topics) {
  const key = query(target, filters);
  const head = useData(query(key, { limit: PAGE }), { topics, every: 10 });
  const [tail, setTail] = useState({ key, items: [], cursor: undefined });
  const busy = useRef(false);
  const first = head.data.value;
  const extra = tail.key === key ? tail : { key, items: [], cursor: undefined };
  const cursor = extra.cursor === undefined ? first?.cursor : extra.cursor;
  const items = useMemo(() => {
    if (!first) return [];
    const seen = new Set(first.items.map((one) => one.id));
    return [...first.items, ...extra.items.filter((one) => !seen.has(one.id))];
  }, [first, extra]);
  const more = async () => {
    if (busy.current || !cursor) return;
    busy.current = true;
    try {
      // What leaves the first page when new rows arrive stays in the list.
      const known = extra.items.length ? extra.items : first.items;
      const page = await get(query(key, { limit: 1000, cursor }));
      setTail({ key, items: [...known, ...page.items], cursor: page.cursor });
    } catch (error) { report(error); } finally { busy.current = false; }
  };
  return { head, items, cursor, more };
}

export function MessageTable({ filters, fill = true }) {
  const list = useList("messages", filters, ["messages"]);
  return html`<${Load} from=${list.head}>${() => html`<${Table} label="Messages" rows=${list.items} columns=${COLUMNS} href=${(one) => link("messages", one.message_id)} more=${Boolean(list.cursor)} onEnd=${list.more} fill=${fill} empty="No message matches" />`}</${Load}>`;
}

function List() {
  const overview = useData("overview", { last: 2 });
  const counts = overview.data.value?.counts.messages ?? {};
  const types = useData("types?kind=message", { topics: ["events"], last: 1 });
  const filters = { status: param("status"), type: param("type"), sender: param("sender"), to: param("to"), session: param("session"), correlation: param("correlation") };
  const list = useList("messages", filters, ["messages"]);
  const chosen = listParam("status");
  const purgeable = chosen.length === 1 && ["acked", "dead", "expired"].includes(chosen[0]) ? chosen[0] : null;
  const dead = list.items.filter((one) => one.status === "dead");
  return html`<div class="page full"><header class="head"><h1>Messages</h1><span class="muted">${number(list.items.length)}${list.cursor ? " loaded" : ""}${FILTERS.some((name) => param(name)) ? "" : ` of ${number(Object.values(counts).reduce((a, b) => a + b, 0))}`}</span><span class="grow"></span>
    ${mayOperate.value && html`<div class="actions">${purgeable === "dead" && dead.length > 0 && html`<${Button} onClick=${() => requeue(dead.slice(0, 1000))}>Requeue ${number(Math.min(1000, dead.length))} …</${Button}>`}
      ${purgeable && html`<${Button} kind="danger-quiet" onClick=${() => purge(purgeable)}>Purge ${purgeable} …</${Button}>`}<${Button} kind="primary" icon="send" onClick=${() => compose({})}>Compose</${Button}></div>`}</header>
    <div class="filters"><${Chips} name="status" label="Status" options=${STATUSES.map((one) => [one, counts[one] ?? 0])} />
      <${Select} name="type" label="Type" options=${(types.data.value ?? []).map((one) => one.name)} /><${Field} name="sender" label="From" placeholder="agent" /><${Field} name="to" label="To" placeholder="agent, pool:x, topic:x" /><${Field} name="session" label="Session" /><${Field} name="correlation" label="Correlation" /><${Clear} names=${FILTERS} /></div>
    <${Load} from=${list.head}>${() => html`<${Table} label="Messages" rows=${list.items} columns=${COLUMNS} href=${(one) => link("messages", one.message_id)} more=${Boolean(list.cursor)} onEnd=${list.more} empty="No message matches" />`}</${Load}></div>`;
}

/** Delete finished messages: count them first, then ask. */
export async function purge(status) {
  const before = await get("overview");
  const found = await change("POST", "messages/purge", { status, dry_run: true });
  if (!found.count) { toast("Nothing to purge"); return; }
  await ask({ title: `Delete ${plural(found.count, `${status} message`)}?`, action: `Delete ${number(found.count)}`, danger: true,
    body: html`<p>${number(found.count)} of ${number(before.counts.messages[status] ?? found.count)} messages with the status ${status} are deleted. This cannot be undone.</p>`,
    run: async () => { const done = await change("POST", "messages/purge", { status }, ["messages"]); toast(`Deleted ${plural(done.count, "message")}`); } });
}

/** Send a message as the operator. */
export async function compose(given) {
  const [types, agents] = await Promise.all([get("types?kind=message"), get("agents?status=incomplete&limit=500")]);
  await ask({ title: given.correlation ? "Answer in this thread" : "Send a message", action: "Send",
    fields: [
      { name: "to", label: "To", required: true, value: given.to, placeholder: "agent, pool:NAME or topic:NAME", options: agents.items.map((one) => one.id) },
      { name: "type", label: "Type", required: true, value: given.type ?? "note", options: types.map((one) => one.name) },
      { name: "payload", label: "Payload: JSON, or text", type: "area", rows: 6 },
      { name: "priority", label: "Priority, 0 to 9", type: "number", value: "5" },
    ],
    run: async ({ to, type, payload, priority }) => {
      await change("POST", "messages", { to: to.trim(), type: type.trim(), payload: typed(payload, parseJson), priority: Number(priority), correlation: given.correlation ?? undefined }, ["messages"]);
      toast(`Sent to ${to}`);
    } });
}

function Thread({ of }) {
  const key = of.correlation ?? of.message_id;
  const answers = useData(query("messages", { correlation: key, limit: 200 }), { topics: ["messages"] });
  const root = useData(of.correlation ? path`messages/${of.correlation}` : null);
  const items = useMemo(() => {
    const found = new Map((answers.data.value?.items ?? []).map((one) => [one.id, one]));
    if (root.data.value) found.set(root.data.value.id, root.data.value);
    found.set(of.id, of);
    return [...found.values()].sort((a, b) => a.id - b.id);
  }, [answers.data.value, root.data.value, of]);
  if (items.length < 2) return html`<${Empty} title="No other message in its thread" />`;
  return html`<ol class="thread">${items.map((one) => html`<li key=${one.id} class=${one.id === of.id ? "on" : ""}><span class="muted mono">${one.id}</span><${Address} to=${one.sender} /><span class="muted">→</span><${Address} to=${one.recipient} /><a class="ref" href=${link("messages", one.message_id)}><${Text} v=${one.type} /></a><${Status} s=${one.status} /><span class="what mono muted"><${Text} v=${one.payload} max=${140} /></span><span class="muted end"><${Ago} at=${one.created} /></span></li>`)}</ol>`;
}

function Page({ id }) {
  const message = useData(path`messages/${id}`, { topics: ["messages"], every: 10 });
  return html`<${Load} from=${message}>${(one) => html`<div class="page"><header class="head"><a class="up" href=${link("messages")}>Messages</a><h1><${Text} v=${one.type} /></h1><${Status} s=${one.status} /><span class="grow"></span>
      ${mayOperate.value && html`<div class="actions">${one.status === "dead" && html`<${Button} icon="redo" onClick=${() => requeue([one])}>Requeue …</${Button}>`}<${Button} icon="send" onClick=${() => compose({ to: /^(pool|topic|operator):/.test(one.sender) ? "" : one.sender, correlation: one.correlation ?? one.message_id })}>Answer</${Button}></div>`}</header>
    ${one.held && html`<div class="callout warn"><b><${Text} v=${one.hold_reason} max=${2000} /></b></div>`}
    ${one.error && html`<div class="callout bad"><b><${Text} v=${one.error} max=${2000} /></b></div>`}
    <div class="columns"><${Card} title="Payload"><${Json} value=${one.payload} depth=${3} label="payload" /></${Card}
    ><${Card} title="Delivery"><${Facts} of=${[
    ["From", html`<${Address} to=${one.sender} />`], ["To", html`<${Address} to=${one.recipient} />`], ["Held by", one.holder && html`<${Ref} kind="agent" id=${one.holder} />`], ["Priority", one.priority], ["Attempts", `${one.attempts} of ${one.max_attempts}`],
    ["Session", one.session && html`<${Ref} kind="session" id=${one.session} />`], ["Sent", html`<${At} at=${one.created} />`], ["Due", one.due && html`<${At} at=${one.due} />`], ["Last delivered", one.leased_at && html`<${At} at=${one.leased_at} />`], ["Seen", one.seen && html`<${At} at=${one.seen} />`], ["Finished", one.finished && html`<${At} at=${one.finished} />`],
    ["Took", one.finished && one.leased_at && duration(one.finished - one.leased_at)], ["Expires", one.expires && html`<${Ago} at=${one.expires} future />`], ["Message id", html`<span class="mono"><${Text} v=${one.message_id} /></span>`], ["Correlation", one.correlation && html`<span class="mono"><${Text} v=${one.correlation} /></span>`]]} />
      ${Object.keys(one.headers ?? {}).length > 0 && html`<h3>Headers</h3><${Json} value=${one.headers} depth=${1} />`}</${Card}></div>
    <${Card} title="Receipts" aside=${plural(one.receipts.length, "receipt")}><${Receipts} of=${one} /></${Card}>
    <${Card} title="Thread"><${Thread} of=${one} /></${Card}></div>`}</${Load}>`;
}

/** The contexts into which a message was delivered. */
function Receipts({ of }) {
  if (!of.receipts.length) return html`<${Empty} title=${of.status === "acked" ? "Acknowledged without a receipt, as programs do" : "Not seen by any agent yet"} />`;
  return html`<ul class="rows">${of.receipts.map((one) => html`<li key=${`${one.message_id} ${one.agent} ${one.epoch} ${one.client}`}><${Ref} kind="agent" id=${one.agent} /><span class="what">incarnation ${one.epoch} · by <${Text} v=${one.channel} />${one.client && html` · session <span class="mono"><${Text} v=${one.client} max=${60} /></span>`}</span><span class="muted end"><${Ago} at=${one.at} /></span></li>`)}</ul>`;
}

export default function Messages({ parts }) {
  return parts.length ? html`<${Page} key=${parts[0]} id=${parts[0]} />` : html`<${List} />`;
}
