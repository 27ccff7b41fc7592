// Queues: depth, age, rate, members and dead letters of each mailbox.
import { get, link, mayOperate, now, param, query, readAll, readSpans, useData } from "./core.js";
import { Address, Button, duration, html, Load, number, plural, Search, Sparkline, Status } from "./ui.js";
import { Table } from "./table.js";
import { requeue, unattended } from "./now.js";
import { purge } from "./messages.js";

const of = (status) => (one) => (one[status] ? html`<a class="ref" href=${`${link("messages")}?to=${encodeURIComponent(one.recipient)}&status=${status}`}>${number(one[status])}</a>` : html`<span class="muted">0</span>`);

async function requeueAll(one) {
  const page = await get(query("messages", { to: one.recipient, status: "dead", limit: 1000 }));
  await requeue(page.items);
}

const COLUMNS = [
  { key: "recipient", title: "Queue", width: "minmax(160px, 2fr)", narrow: "minmax(0, 1fr)", sort: (one) => one.recipient, cell: (one) => html`<${Address} to=${one.recipient} />` },
  { key: "members", title: "Live members", width: "minmax(136px, 1fr)", sort: (one) => one.members, cell: (one) => (unattended(one) ? html`<${Status} s="error" text="no live member" />` : number(one.members)) },
  { key: "queued", title: "Waiting", width: "84px", narrow: "64px", end: true, sort: (one) => one.queued, cell: of("queued") },
  { key: "oldest", title: "Oldest", width: "104px", narrow: "84px", end: true, sort: (one) => one.oldest, cell: (one) => (one.queued ? duration(one.oldest) : html`<span class="muted">–</span>`) },
  { key: "leased", title: "Held", width: "72px", end: true, sort: (one) => one.leased, cell: of("leased") },
  { key: "scheduled", title: "Later", width: "72px", end: true, sort: (one) => one.scheduled, cell: of("scheduled") },
  { key: "dead", title: "Dead", width: "66px", narrow: "52px", end: true, sort: (one) => one.dead, cell: (one) => html`<span class=${one.dead ? "bad-text" : ""}>${of("dead")(one)}</span>` },
  { key: "rate", title: "Sent, last hour", width: "118px", cell: (one) => html`<${Sparkline} values=${one.sent} label=${`${number((one.sent ?? []).reduce((a, b) => a + b, 0))} messages in the last hour`} />` },
  { key: "act", title: "", width: "112px", end: true, cell: (one) => (mayOperate.value && one.dead ? html`<${Button} kind="quiet small" onClick=${() => requeueAll(one)}>Requeue ${number(Math.min(one.dead, 1000))} …</${Button}>` : null) },
];

const SLOTS = 30;

/** Messages sent to each mailbox in the last hour, in slots of two minutes. */
async function readSent() {
  const end = now(), start = end - 3600e3;
  const { items } = await readSpans(start, end, 3000);
  const found = new Map();
  for (const one of items) {
    if (one.created < start) continue;
    if (!found.has(one.recipient)) found.set(one.recipient, new Array(SLOTS).fill(0));
    found.get(one.recipient)[Math.min(SLOTS - 1, Math.floor(((one.created - start) / 3600e3) * SLOTS))]++;
  }
  return found;
}

export default function Queues() {
  const queues = useData("queues", { topics: ["messages", "agents"], every: 15, read: (publish) => readAll("queues", publish) });
  const sent = useData("sent", { every: 60, read: readSent, last: 1 });
  const items = (queues.data.value?.items ?? []).map((one) => ({ ...one, sent: sent.data.value?.get(one.recipient) }));
  const q = param("q").toLowerCase();
  return html`<div class="page full"><header class="head"><h1>Queues</h1><span class="muted">${queues.data.value && plural(queues.data.value.items.length, "mailbox", "mailboxes")}</span><span class="grow"></span>
      ${mayOperate.value && html`<div class="actions"><${Button} onClick=${() => purge("acked")}>Purge acked …</${Button}><${Button} kind="danger-quiet" onClick=${() => purge("dead")}>Purge dead letters …</${Button}></div>`}</header>
    <div class="filters"><${Search} label="Search queues" /></div>
    <${Load} from=${queues}>${() => html`<${Table} label="Queues" sort="-queued" rows=${q ? items.filter((one) => one.recipient.toLowerCase().includes(q)) : items} keyOf=${(one) => one.recipient} columns=${COLUMNS} empty="No queue" hint="Mailboxes of agents and pools appear with their first message." />`}</${Load}></div>`;
}
