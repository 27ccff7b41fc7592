// Sessions: agents, documents with versions and differences, participants, checkpoints, and recovery.
import { useMemo } from "./vendor.js";
import { change, link, mayOperate, param, path, query, setParams, toJson, useData } from "./core.js";
import { Ago, ask, At, Button, bytes, Card, Chips, Clear, duration, Empty, Facts, Field, html, Json, Load, number, plural, Progress, REASON, Ref, Status, Tabs, Tag, Text, toast } from "./ui.js";
import { Table } from "./table.js";
import { useList } from "./messages.js";
import { EventList } from "./events.js";
import { Checkpoints, OwnState } from "./agents.js";
import { optionWords, recover } from "./now.js";

const STATUSES = ["active", "paused", "interrupted", "completed", "failed"];
const COLUMNS = [
  { key: "id", title: "Session", width: "minmax(160px, 2fr)", narrow: "minmax(0, 1fr)", cell: (one) => html`<${Ref} kind="session" id=${one.id} />` },
  { key: "status", title: "Status", width: "150px", narrow: "104px", cell: (one) => html`<${Status} s=${one.status} />${one.degraded && html` <${Tag} tone="warn">degraded</${Tag}>`}` },
  { key: "operation", title: "Operation", width: "minmax(120px, 1fr)", cell: (one) => html`<${Text} v=${one.operation} />` },
  { key: "milestone", title: "Milestone", width: "minmax(90px, 1fr)", cell: (one) => html`<${Text} v=${one.milestone} />` },
  { key: "progress", title: "Progress", width: "120px", cell: (one) => html`<${Progress} value=${one.progress} />` },
  { key: "error", title: "Reason", width: "minmax(120px, 2fr)", cell: (one) => html`<span class="bad-text"><${Text} v=${one.error} max=${160} /></span>` },
  { key: "updated", title: "Updated", width: "100px", narrow: "84px", end: true, cell: (one) => html`<${Ago} at=${one.updated} />` },
];

function List() {
  const list = useList("sessions", { status: param("status"), operation: param("operation"), milestone: param("milestone") }, ["sessions"]);
  return html`<div class="page full"><header class="head"><h1>Sessions</h1><span class="muted">${list.head.data.value && `${number(list.items.length)}${list.cursor ? "+" : ""} shown`}</span></header>
    <div class="filters"><${Chips} name="status" label="Status" options=${STATUSES.map((one) => [one])} /><${Field} name="operation" label="Operation" /><${Field} name="milestone" label="Milestone" /><${Clear} names=${["status", "operation", "milestone"]} /></div>
    <${Load} from=${list.head}>${() => html`<${Table} label="Sessions" rows=${list.items} columns=${COLUMNS} href=${(one) => link("sessions", one.id)} more=${Boolean(list.cursor)} onEnd=${list.more} empty="No session matches" />`}</${Load}></div>`;
}

// Differences

/** Lines of two texts, as [mark, line]; the longest common subsequence of the lines that differ. */
export function difference(before, after) {
  const a = before.split("\n"), b = after.split("\n");
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  const left = a.slice(start, a.length - end), right = b.slice(start, b.length - end);
  const found = a.slice(0, start).map((line) => [" ", line]);
  if (left.length * right.length > 4e6) found.push(...left.map((line) => ["-", line]), ...right.map((line) => ["+", line]));
  else {
    const table = Array.from({ length: left.length + 1 }, () => new Uint32Array(right.length + 1));
    for (let i = left.length - 1; i >= 0; i--) for (let j = right.length - 1; j >= 0; j--) table[i][j] = left[i] === right[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
    let i = 0, j = 0;
    while (i < left.length || j < right.length) {
      if (i < left.length && j < right.length && left[i] === right[j]) { found.push([" ", left[i]]); i++; j++; }
      else if (j >= right.length || (i < left.length && table[i + 1][j] >= table[i][j + 1])) found.push(["-", left[i++]]);
      else found.push(["+", right[j++]]);
    }
  }
  return [...found, ...a.slice(a.length - end).map((line) => [" ", line])];
}
const written = (value) => (typeof value === "string" ? value : toJson(value, 2));

function Diff({ before, after }) {
  const lines = useMemo(() => difference(written(before), written(after)), [before, after]);
  const shown = lines.length > 3000 ? lines.slice(0, 3000) : lines;
  return html`<pre class="diff" tabindex="0" aria-label="difference">${shown.map(([mark, line], index) => html`<span key=${index} class=${{ "+": "add", "-": "del" }[mark] ?? ""}>${mark} <${Text} v=${line} max=${2000} />${"\n"}</span>`)}</pre>`;
}

function Documents({ session, documents, missing }) {
  const name = param("doc") || documents[0]?.name;
  const versions = useData(name ? query(path`sessions/${session}/documents/${name}/versions`, { limit: 50 }) : null, { topics: ["sessions", `session:${session}`], every: 15 });
  const all = versions.data.value?.versions ?? [];
  const shown = all.find((one) => String(one.version) === param("version")) ?? all[0];
  const before = all.find((one) => one.version < (shown?.version ?? 0));
  const diff = param("diff") === "1" && before;
  return html`<${Card} title="Documents" aside=${plural(documents.length, "document")}>
    ${Object.entries(missing).map(([producer, owed]) => html`<p key=${producer} class="callout warn"><b><${Text} v=${owed} /></b> is missing; <${Text} v=${producer} /> owes it</p>`)}
    ${documents.length ? html`<div class="split"><ul class="list" aria-label="Documents">${documents.map((one) => html`<li key=${one.name}><button type="button" aria-pressed=${String(one.name === name)} onClick=${() => setParams({ doc: one.name, version: "" })}><b><${Text} v=${one.name} /></b><small class="muted">v${one.version} · <${Text} v=${one.author ?? "–"} /> · <${Ago} at=${one.created} /></small></button></li>`)}</ul>
      <div class="detail"><div class="chips" role="group" aria-label="Versions">${all.map((one) => html`<button key=${one.version} type="button" class="chip" aria-pressed=${String(one === shown)} title=${one.author ?? ""} onClick=${() => setParams({ version: one.version })}>v${one.version}</button>`)}
          ${before && html`<label class="check"><input type="checkbox" checked=${Boolean(diff)} onChange=${(event) => setParams({ diff: event.target.checked ? "1" : "" })} /><span>difference to v${before.version}</span></label>`}</div>
        <${Load} from=${versions}>${() => shown && html`<p class="muted note">v${shown.version} by <${Text} v=${shown.author ?? "–"} />, <${At} at=${shown.created} /></p>${diff ? html`<${Diff} before=${before.value} after=${shown.value} />` : html`<${Json} value=${shown.value} depth=${3} label="document" />`}`}</${Load}></div></div>` : html`<${Empty} title="No document" />`}</${Card}>`;
}

// Recovery

function Recovery({ id }) {
  const plan = useData(path`sessions/${id}/recovery`, { topics: ["sessions", `session:${id}`, "agents"], every: 15 });
  return html`<${Load} from=${plan}>${(found) => html`<${Card} title="Recovery plan" class=${found.session.status === "interrupted" ? "urgent" : ""}>
    ${found.options.length === 0 ? html`<${Empty} title="Nothing to recover">${found.owned || found.at_work.length ? "It is in use." : ""}</${Empty}>` : html`<ol class="options">${found.options.map((option, index) => html`<li key=${option.action}><div><b>${optionWords[option.action] ?? option.action}</b>${index === 0 && html` <${Tag} tone="good">likeliest</${Tag}>`}<p class="muted"><${Text} v=${option.does} max=${1000} /></p></div>${mayOperate.value && html`<${Button} kind=${index ? "" : "primary"} onClick=${() => recover(id, option)}>${optionWords[option.action] ?? option.action} …</${Button}>`}</li>`)}</ol>`}
    ${found.agents.length > 0 && html`<h3>Agents</h3><ul class="rows">${found.agents.slice(0, 50).map((one) => html`<li key=${one.id}><${Status} s=${one.status} /><${Ref} kind="agent" id=${one.id} /><span class="what">${one.progress} % ${one.cut_off && html`<${Tag} tone="warn">interrupted</${Tag}>`} <${Text} v=${one.error ?? one.note} max=${160} />${one.checkpoint && html` <span class="muted">· checkpoint ${one.checkpoint.id}</span> <${Text} v=${one.checkpoint.name} />`}${one.waiting + one.held > 0 && html` <span class="muted">· ${plural(one.waiting + one.held, "message")} unfinished</span>`}</span></li>`)}</ul>`}
    <${Facts} of=${[["Present", Object.entries(found.present).length > 0 && Object.entries(found.present).map(([who, what]) => html`<span key=${who}><${Text} v=${what} /> <span class="muted">of <${Text} v=${who} /></span> </span>`)], ["Missing", Object.entries(found.missing).length > 0 && Object.entries(found.missing).map(([who, what]) => html`<span key=${who} class="bad-text"><${Text} v=${what} /> <span class="muted">of <${Text} v=${who} /></span> </span>`)],
    ["Open tasks", Object.entries(found.tasks).length > 0 && Object.entries(found.tasks).map(([task, status]) => html`<${Ref} key=${task} kind="task" id=${task} /> `)], ["Follow-ons", found.follow_ons.length > 0 && found.follow_ons.map((one) => html`<${Ref} key=${one} kind="session" id=${one} /> `)], ["Meetings continue with", Object.entries(found.remaining).map(([meeting, members]) => `${meeting}: ${members.join(", ")}`).join("; ")]]} /></${Card}>`}</${Load}>`;
}

function Participants({ id }) {
  const found = useData(path`sessions/${id}/meetings`, { topics: ["sessions", `session:${id}`], every: 15 });
  return html`<${Load} from=${found} small>${({ meetings }) => meetings.map((one) => html`<${Card} key=${one.name} title=${html`Meeting <${Text} v=${one.name} />`} aside=${`${one.members.filter((member) => member.finished).length} of ${one.members.length} finished`}><ul class="rows">${one.members.map((member) => html`<li key=${member.name} class="tall"><${Status} s=${member.finished ? "finished" : "pending"} /><b><${Text} v=${member.name} /></b><div class="what">${member.finished && member.result !== null && html`<${Json} value=${member.result} depth=${1} />`}</div><span class="muted end">${member.finished && html`<${Ago} at=${member.finished} />`}</span></li>`)}</ul></${Card}>`)}</${Load}>`;
}

function Composites({ id, open }) {
  const found = useData(query(path`sessions/${id}/composites`, { limit: 100 }), { topics: ["sessions", "checkpoints"], every: 15 });
  const save = () => ask({ title: "Save a composite checkpoint", action: "Save", fields: [{ name: "name", label: "Name", required: true }, { name: "notes", label: "Notes" }], body: html`<p>Documents, state, participants and checkpoints of the whole session, in one commit.</p>`, run: async (values) => { await change("POST", path`sessions/${id}/composites`, values, ["sessions", "checkpoints"]); toast("Saved"); } });
  const back = (one) => ask({ title: `Roll back to ${one.name}?`, action: "Roll back", danger: true, body: html`<p>Documents and state return to checkpoint ${one.id} of <${At} at=${one.created} />. The present state is saved first, so that this can be undone.</p>`, run: async () => { await change("POST", path`sessions/${id}/rollback`, { checkpoint: one.id }, ["sessions", "checkpoints"]); toast("Rolled back"); } });
  return html`<${Load} from=${found}>${(page) => html`<${Card} title="Composite checkpoints" aside=${mayOperate.value && open && html`<${Button} kind="small" onClick=${save}>Save …</${Button}>`}>${page.items.length ? html`<ul class="rows">${page.items.map((one) => html`<li key=${one.id}><b><${Text} v=${one.name} /></b><span class="what"><span class="muted">${one.id} · ${bytes(one.size)}</span> <${Text} v=${one.notes} /></span>${mayOperate.value && open && html`<${Button} kind="quiet small" onClick=${() => back(one)}>Roll back …</${Button}>`}<span class="muted end"><${Ago} at=${one.created} /></span></li>`)}</ul>` : html`<${Empty} title="No composite checkpoint" />`}</${Card}>`}</${Load}>`;
}

const VERBS = { pause: ["Pause", "Failures of its agents do not interrupt it while it is paused.", "reason"], continue: ["Continue", "It is active again.", null], complete: ["Complete", "It ends as completed.", null], fail: ["Fail", "It ends as failed.", "error"] };
async function control(id, verb) {
  const [title, does, field] = VERBS[verb];
  await ask({ title: `${title} ${id}?`, action: title, danger: verb === "fail" || verb === "complete", body: html`<p>${does}</p>`, fields: field ? [{ ...REASON, name: field, required: field === "error" }] : [],
    run: async (values) => { await change("POST", path`sessions/${id}/${verb}`, field ? { [field]: values[field] || null } : undefined, ["sessions", `session:${id}`]); toast(`${title}: done`); } });
}
const POSSIBLE = { active: ["pause", "complete", "fail"], paused: ["continue", "complete", "fail"], interrupted: ["continue", "fail"] };

function Page({ id }) {
  const view = useData(path`sessions/${id}`, { topics: [`session:${id}`, "sessions"], every: 10 });
  const agents = useData(query("agents", { session: id, limit: 500 }), { topics: ["agents", "sessions"], every: 10 });
  const tab = param("tab") || "overview";
  return html`<${Load} from=${view}>${({ session, agents: counts, documents, missing }) => html`<div class="page"><header class="head"><a class="up" href=${link("sessions")}>Sessions</a><h1><${Text} v=${session.id} /></h1><${Status} s=${session.status} />${session.degraded && html`<${Tag} tone="warn">degraded</${Tag}>`}<span class="grow"></span>
      ${mayOperate.value && html`<div class="actions">${(POSSIBLE[session.status] ?? []).map((verb) => html`<${Button} key=${verb} kind=${verb === "fail" ? "danger-quiet" : ""} onClick=${() => control(id, verb)}>${VERBS[verb][0]} …</${Button}>`)}</div>`}</header>
    <p class="sub"><span class="muted">operation</span> <${Text} v=${session.operation} />${session.milestone && html` <span class="muted">· milestone</span> <${Text} v=${session.milestone} />`} ${session.progress > 0 && html`<${Progress} value=${session.progress} />`} <span class="muted">· started</span> <${Ago} at=${session.created} /></p>
    ${session.error && html`<div class="callout bad"><b><${Text} v=${session.error} max=${1000} /></b></div>`}
    <${Tabs} label="Parts" items=${[["overview", "Overview"], ["documents", "Documents", documents.length], ["agents", "Agents", Object.values(counts).reduce((a, b) => a + b, 0)], ["checkpoints", "Checkpoints"], ["state", "State"], ["events", "Events"]]} />
    ${tab === "overview" && html`${!session.ended && html`<${Recovery} id=${id} />`}<${Participants} id=${id} />${Object.keys(session.metadata).length > 0 && html`<${Card} title="Metadata"><${Json} value=${session.metadata} /></${Card}>`}
      ${session.ended && html`<${Card} title="Record"><${Facts} of=${[["Started", html`<${At} at=${session.created} />`], ["Ended", html`<${At} at=${session.ended} />`], ["Took", duration(session.ended - session.created)], ["Agents", Object.entries(counts).map(([status, n]) => `${n} ${status}`).join(", ")]]} /></${Card}>`}`}
    ${tab === "documents" && html`<${Documents} session=${id} documents=${documents} missing=${missing} />`}
    ${tab === "agents" && html`<${Load} from=${agents}>${(page) => html`<${Table} label="Agents" fill=${false} rows=${page.items} href=${(one) => link("agents", one.id)} empty="No agent" columns=${AGENTS} />`}</${Load}>`}
    ${tab === "checkpoints" && html`<${Composites} id=${id} open=${!session.ended} /><${Checkpoints} owner=${id} kind="session" />`}
    ${tab === "state" && html`<${OwnState} scope=${`session:${id}`} />`}
    ${tab === "events" && html`<${EventList} subject=${`session:${id}`} fill=${false} />`}</div>`}</${Load}>`;
}
const AGENTS = [
  { key: "id", title: "Agent", width: "minmax(160px, 2fr)", narrow: "minmax(0, 1fr)", cell: (one) => html`<${Ref} kind="agent" id=${one.id} />` },
  { key: "status", title: "Status", width: "110px", narrow: "96px", cell: (one) => html`<${Status} s=${one.status} />` },
  { key: "type", title: "Type", width: "120px", cell: (one) => html`<${Text} v=${one.type} />` },
  { key: "progress", title: "Progress", width: "120px", cell: (one) => html`<${Progress} value=${one.progress} />` },
  { key: "note", title: "Doing", width: "minmax(120px, 3fr)", cell: (one) => html`<${Text} v=${one.error ?? one.note} max=${160} />` },
];

export default function Sessions({ parts }) {
  return parts.length ? html`<${Page} key=${parts[0]} id=${parts[0]} />` : html`<${List} />`;
}
