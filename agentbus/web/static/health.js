// Health: the doctor, capacity, quotas, retention, and sizes over time.
import { change, mayOperate, useData } from "./core.js";
import { Ago, ask, Button, bytes, Card, Chart, duration, Facts, html, Load, number, plural, Status, Text, toast } from "./ui.js";
import { Rates, useRates } from "./now.js";

const QUOTAS = [["depth", "Messages that wait in one mailbox"], ["rate", "Messages per second of one agent"], ["size", "Bytes at which no more messages are accepted"], ["thread", "Messages of agents in one thread without progress"]];
async function editQuotas(now) {
  await ask({ title: "Quotas", action: "Save", body: html`<p>An empty field means no limit.</p>`, fields: QUOTAS.map(([name, label]) => ({ name, label, type: "number", value: now[name] ?? "" })),
    run: async (values) => { await change("PATCH", "quotas", Object.fromEntries(QUOTAS.map(([name]) => [name, values[name] === "" ? null : Number(values[name])])), ["bus", "health"]); toast("Saved"); } });
}
const COUNTED = new Set(["checkpoints_last", "checkpoints_daily", "messages_most"]);
const shown = (name, value) => (value === null ? "indefinitely" : COUNTED.has(name) ? number(value) + (name === "checkpoints_daily" ? " days" : "") : value === 0 ? "not at all" : duration(value * 1000));
async function editRetention(now) {
  await ask({ title: "Retention", action: "Save", body: html`<p>Seconds, or counts. An empty field keeps data indefinitely.</p>`, fields: Object.entries(now).map(([name, value]) => ({ name, label: name.replaceAll("_", " "), type: "number", value: value ?? "" })),
    run: async (values) => { await change("PATCH", "retention", Object.fromEntries(Object.entries(values).map(([name, value]) => [name, value === "" ? null : Number(value)])), ["bus", "health"]); toast("Saved"); } });
}
async function applyRetention() {
  const found = await change("POST", "retention/apply", { dry_run: true });
  const sum = Object.values(found.removed).reduce((a, b) => a + b, 0);
  if (!sum) { toast("Nothing is past its retention period"); return; }
  await ask({ title: `Archive and delete ${plural(sum, "row")}?`, action: `Delete ${number(sum)}`, danger: true, body: html`<p>${Object.entries(found.removed).map(([kind, count]) => `${number(count)} ${kind}`).join(", ")}. They are archived first.</p>`,
    run: async () => { const done = await change("POST", "retention/apply", {}, ["any"]); toast(`Deleted ${plural(Object.values(done.removed).reduce((a, b) => a + b, 0), "row")}`); } });
}

export default function Health() {
  const doctor = useData("doctor", { topics: [], every: 60, slowest: 600 });
  const overview = useData("overview", {});
  const quotas = useData("quotas", { topics: ["health", "bus:quotas", "events"] });
  const retention = useData("retention", { topics: ["health", "events"] });
  const sizes = useRates().data.value;
  const minutes = sizes?.minutes ?? [];
  const of = (name) => minutes.map((one) => one[name]);
  return html`<div class="page"><header class="head"><h1>Health</h1>${doctor.data.value && html`<${Status} s=${doctor.data.value.status} />`}<span class="grow"></span>
      ${mayOperate.value && html`<div class="actions"><${Button} onClick=${async () => { const found = await change("POST", "sweep", undefined, ["any"]); toast(found.findings.length ? `Sweep: ${plural(found.findings.length, "finding")}` : "Sweep: nothing found"); await doctor.load(); }}>Sweep</${Button}><${Button} onClick=${async () => { const made = await change("POST", "backups", {}, []); toast(`Backup of ${bytes(made.size)}`); }}>Back up</${Button}></div>`}</header>
    <${Card} title="Doctor" aside=${html`<${Button} kind="quiet small" onClick=${() => doctor.load()}>Check again</${Button}>`}><${Load} from=${doctor}>${({ checks }) => html`<ul class="rows">${checks.map((one, index) => html`<li key=${index}><${Status} s=${one.status} /><b>${one.name}</b><span class="what"><${Text} v=${one.text} max=${400} />${one.fix && html`<span class="fix"><${Text} v=${one.fix} max=${400} /></span>`}</span></li>`)}</ul>`}</${Load}></${Card}>
    <div class="columns"><${Card} title="Database"><${Load} from=${overview}>${(found) => html`<${Facts} of=${[["Size", bytes(found.database_bytes)], ["Log", bytes(found.log_bytes)], ["Capacity", found.outgrown.why.length ? html`<span class="bad-text"><${Text} v=${found.outgrown.why.join("; ")} /></span>` : "enough"], ["Advice", found.outgrown.fix && html`<${Text} v=${found.outgrown.fix} />`]]} />
        ${minutes.length > 0 && html`<${Chart} times=${of("at")} label="Size of the database" height=${130} format=${bytes} series=${[{ name: "database", tone: "info", values: of("database_bytes") }, { name: "log", tone: "calm", values: of("log_bytes") }]} />`}`}</${Load}></${Card}>
      <${Card} title="Lock waits">${minutes.length ? html`<${Chart} times=${of("at")} label="Seconds that writers waited for the lock, per minute" height=${170} format=${(one) => `${one.toFixed(1)} s`} series=${[{ name: "waits per minute", tone: "warn", values: of("lock_waits") }]} /><p class="muted note">counted by this server since <${Ago} at=${sizes.since} /></p>` : html`<p class="muted">No figures yet.</p>`}</${Card}></div>
    <${Card} title="Throughput"><${Rates} height=${150} /></${Card}>
    <div class="columns"><${Card} title="Quotas" aside=${mayOperate.value && quotas.data.value && html`<${Button} kind="small" onClick=${() => editQuotas(quotas.data.value)}>Change …</${Button}>`}><${Load} from=${quotas}>${(found) => html`<${Facts} of=${QUOTAS.map(([name, label]) => [label, found[name] === null ? "no limit" : name === "size" ? bytes(found[name]) : number(found[name])])} />`}</${Load}></${Card}>
      <${Card} title="Retention" aside=${mayOperate.value && retention.data.value && html`<${Button} kind="small" onClick=${() => editRetention(retention.data.value)}>Change …</${Button}><${Button} kind="small" onClick=${applyRetention}>Apply …</${Button}>`}><${Load} from=${retention}>${(found) => html`<${Facts} of=${Object.entries(found).map(([name, value]) => [name.replaceAll("_", " "), name === "failed_sessions" && value === null ? "like sessions" : shown(name, value)])} />`}</${Load}></${Card}></div></div>`;
}
