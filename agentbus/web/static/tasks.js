// Tasks: a list, and a page with a Gantt chart of the steps and all controls.
import { change, link, mayOperate, now, param, parseJson, path, query, setParams, tick, toJson, useData } from "./core.js";
import { Ago, ask, At, Button, Card, Chips, Clear, clock, duration, Empty, Facts, Field, html, Json, Load, number, plain, plural, Progress, REASON, Ref, Select, Status, Tabs, Tag, Text, toast, tone, typed } from "./ui.js";
import { Table } from "./table.js";
import { useList } from "./messages.js";
import { EventList } from "./events.js";
import { approve, reject, settle } from "./now.js";

const STATUSES = ["running", "waiting", "pending", "halted", "failed", "completed", "stopped"];
const FILTERS = ["status", "workflow", "session"];

const COLUMNS = [
  { key: "id", title: "Task", width: "minmax(160px, 2fr)", narrow: "minmax(0, 1fr)", sort: (one) => one.id, cell: (one) => html`<${Ref} kind="task" id=${one.id} />${one.name !== one.id && html`<small class="muted"><${Text} v=${one.name} max=${80} /></small>`}` },
  { key: "status", title: "Status", width: "112px", narrow: "98px", sort: (one) => STATUSES.indexOf(one.status), cell: (one) => html`<${Status} s=${one.status} />` },
  { key: "workflow", title: "Workflow", width: "minmax(100px, 1fr)", sort: (one) => one.workflow, cell: (one) => html`<${Text} v=${one.workflow} />` },
  { key: "phase", title: "Phase", width: "minmax(90px, 1fr)", cell: (one) => html`<${Text} v=${one.phase} />` },
  { key: "progress", title: "Progress", width: "120px", sort: (one) => one.progress, cell: (one) => html`<${Progress} value=${one.progress} />` },
  { key: "waits", title: "Waits for", width: "minmax(120px, 1.6fr)", cell: (one) => (one.error && one.status === "failed" ? html`<span class="bad-text"><${Text} v=${one.error.message} max=${120} /></span>` : one.waits.map((wait) => html`<${Tag} key=${wait} tone=${wait.startsWith("approval") ? "ask" : "calm"}><${Text} v=${wait} /></${Tag}> `)) },
  { key: "updated", title: "Updated", width: "100px", narrow: "84px", end: true, sort: (one) => one.updated, cell: (one) => html`<${Ago} at=${one.updated} />` },
];

async function startTask() {
  await ask({ title: "Start a task", action: "Start", fields: [{ name: "workflow", label: "Workflow", required: true }, { name: "id", label: "Id" }, { name: "name", label: "Name" }, { name: "arguments", label: "Arguments (JSON list)", type: "area", rows: 3, placeholder: '["Add login"]' }, { name: "auto", label: "Approve everything automatically", type: "check" }],
    run: async ({ workflow, id, name, arguments: given, auto }) => {
      const values = given.trim() ? typed(given, parseJson) : [];
      const made = await change("POST", "tasks", { workflow: workflow.trim(), id: id.trim() || null, name: name.trim() || null, arguments: Array.isArray(values) ? values : [values], auto }, ["tasks"]);
      location.hash = link("tasks", made.id);
    } });
}

function List() {
  const list = useList("tasks", { status: param("status"), workflow: param("workflow"), session: param("session") }, ["tasks"]);
  const stats = useData("task-statistics", { topics: ["tasks"] });
  const counts = stats.data.value?.tasks ?? {};
  return html`<div class="page full"><header class="head"><h1>Tasks</h1><span class="muted">${list.head.data.value && `${number(list.items.length)}${list.cursor ? "+" : ""} shown`}</span><span class="grow"></span>${mayOperate.value && html`<${Button} kind="primary" onClick=${startTask}>Start …</${Button}>`}</header>
    <div class="filters"><${Chips} name="status" label="Status" options=${STATUSES.map((one) => [one, counts[one] ?? 0])} /><${Select} name="workflow" label="Workflow" options=${Object.keys(stats.data.value?.workflows ?? {}).sort()} /><${Field} name="session" label="Session" /><${Clear} names=${FILTERS} /></div>
    <${Load} from=${list.head}>${() => html`<${Table} label="Tasks" rows=${list.items} columns=${COLUMNS} href=${(one) => link("tasks", one.id)} more=${Boolean(list.cursor)} onEnd=${list.more} empty="No task matches" />`}</${Load}></div>`;
}

// Why it waits

function Why({ task, approvals }) {
  const lines = [];
  for (const wait of task.waits) {
    const [kind, ...rest] = wait.split(":");
    const name = rest.join(":");
    if (kind === "approval") {
      const one = approvals.find((one) => one.key === name && one.status === "open" && !one.superseded);
      lines.push(["ask", html`a person must decide <b><${Text} v=${name} /></b>${one && html`, asked <${Ago} at=${one.created} />${one.expires && html`, expires <${Ago} at=${one.expires} future />`}`}`, one]);
    } else if (kind === "task") lines.push(["info", html`the sub-task <${Ref} kind="task" id=${name} /> must end`]);
    else if (kind === "step") lines.push(["warn", html`an operator must settle <b><${Text} v=${name} /></b>: its worker was lost while it ran, and it must run only once`, null, name]);
    else if (kind === "retry") lines.push(["warn", html`<b><${Text} v=${name} /></b> failed and is tried again${task.due ? html` <${Ago} at=${task.due} future />` : ""}`]);
    else if (kind === "sleep" || kind === "timer" || kind === "until") lines.push(["info", html`a time${task.due ? html`, <${Ago} at=${task.due} future />` : ""}: <${Text} v=${name} />`]);
    else lines.push(["info", html`<${Text} v=${wait} />`]);
  }
  if (task.status === "pending" && !lines.length) lines.push(["info", task.due && task.due > now() ? html`it is due <${Ago} at=${task.due} future />` : html`no worker has taken it: a worker with the workflow <b><${Text} v=${task.workflow} /></b> must run`]);
  if (task.status === "halted") lines.push(["warn", html`it was halted: continue it`]);
  if (task.halting) lines.push(["warn", html`it halts before its next step`]);
  for (const step of task.redo) lines.push(["info", html`the redo of <b><${Text} v=${step} /></b> waits for steps that run at the same time`]);
  if (!lines.length) return null;
  return html`<div class="why" role="note" aria-label="Why it waits"><h2>Why it waits</h2><ul>${lines.map(([kind, line, one, step], index) => html`<li key=${index}><span class=${`status ${kind}`}><i aria-hidden="true"></i></span><span>${line}</span>
    ${mayOperate.value && one && html`<div class="actions"><${Button} kind="primary small" icon="check" onClick=${async () => { await approve(one); toast("Approved"); }}>Approve</${Button}><${Button} kind="small" icon="cross" onClick=${async () => { await reject(one); toast("Rejected"); }}>Reject …</${Button}></div>`}
    ${mayOperate.value && step && html`<${Button} kind="primary small" onClick=${() => settle(task.id, step)}>Settle …</${Button}>`}</li>`)}</ul></div>`;
}

// The Gantt chart

const ROW = 26;

/** The rows of the chart, in the order of their start: steps, sub-tasks, phases and approvals. */
function ganttRows(steps, approvals, end) {
  const rows = steps.filter((one) => one.kind !== "checkpoint").map((one) => ({
    key: `${one.kind}:${one.key}:${one.superseded}`, label: one.key, kind: one.kind, status: one.status, from: one.started, to: one.finished ?? (one.status === "retrying" ? one.due ?? end : end), open: !one.finished, position: one.position, superseded: one.superseded, attempt: one.attempt, failures: one.failures, step: one,
  }));
  for (const one of approvals) {
    rows.push({ key: `approval:${one.key}:${one.superseded}`, label: one.key, kind: "approval", status: one.status, from: one.created, to: one.decided ?? end, open: !one.decided, position: one.position, superseded: one.superseded, approval: one });
  }
  rows.sort((a, b) => a.from - b.from || a.position - b.position);
  // A phase lasts until the next one.
  const phases = rows.filter((row) => row.kind === "phase");
  phases.forEach((row, index) => Object.assign(row, { to: phases[index + 1]?.from ?? end, open: !phases[index + 1] && row.open }));
  // What a redo replaced while it was open ended when its successor started.
  for (const row of rows) {
    if (!row.superseded || !row.open) continue;
    const next = rows.find((one) => one.from > row.from && one.kind !== "phase" && one.superseded !== row.superseded);
    Object.assign(row, { to: next?.from ?? row.to, open: false });
  }
  return rows;
}

export function ticks(from, to, count = 6) {
  const steps = [10, 50, 100, 500, 1e3, 5e3, 1e4, 3e4, 6e4, 3e5, 6e5, 18e5, 36e5, 108e5, 216e5, 864e5, 6048e5, 2592e6];
  const step = steps.find((one) => (to - from) / one <= count) ?? 2592e6;
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
  return { found, step };
}

function Gantt({ rows, from, to, selected, choose, relative }) {
  const width = 1000;
  const span = Math.max(1, to - from);
  const x = (at) => ((at - from) / span) * width;
  const marks = ticks(0, span);
  return html`<div class="gantt" role="list" aria-label="Steps over time">
    <div class="gantt-head" aria-hidden="true"><span class="g-label"></span><svg class="g-plot" viewBox=${`0 0 ${width} 18`} preserveAspectRatio="none"></svg><div class="g-ticks">${marks.found.map((at) => html`<span key=${at} style=${{ left: `${(at / span) * 100}%` }}>${relative ? (at ? duration(at) : "0") : clock(from + at)}</span>`)}</div></div>
    ${rows.map((row) => {
    const left = x(row.from);
    const size = Math.max(3, x(row.to) - left);
    const text = `${row.kind} ${row.label}: ${row.status}, ${duration(row.to - row.from)}${row.attempt > 1 ? `, attempt ${row.attempt}` : ""}${row.superseded ? `, replaced by redo ${row.superseded}` : ""}`;
    return html`<div role="listitem" key=${row.key}><button type="button" class=${`g-row ${row.superseded ? "old" : ""} ${selected === row.key ? "on" : ""}`} aria-label=${plain(text)} aria-pressed=${String(selected === row.key)} onClick=${() => choose(row)}>
      <span class="g-label"><span class=${`g-kind ${row.kind}`} aria-hidden="true">${{ approval: "?", task: "⧉", phase: "§" }[row.kind] ?? ""}</span><${Text} v=${row.label} max=${80} />${row.attempt > 1 && html`<small class="tag warn">×${row.attempt}</small>`}${row.superseded > 0 && html`<small class="tag calm">redo ${row.superseded}</small>`}</span>
      <svg class="g-plot" viewBox=${`0 0 ${width} ${ROW}`} preserveAspectRatio="none" aria-hidden="true">
        ${marks.found.map((at) => html`<line key=${at} x1=${x(from + at)} x2=${x(from + at)} y1="0" y2=${ROW} class="grid" />`)}
        <rect x=${left} width=${size} y=${row.kind === "phase" ? 10 : 6} height=${row.kind === "phase" ? 4 : ROW - 12} rx="2" class=${`g-bar ${row.kind} ${tone(row.status)}${row.open ? " open" : ""}`} />
        ${row.failures > 0 && Array.from({ length: Math.min(row.failures, 20) }, (_, index) => html`<rect key=${index} x=${left + (size * (index + 1)) / (row.attempt + (row.open ? 0.5 : 0)) - 2} width="4" y="4" height=${ROW - 8} class="g-bar bad" />`)}
      </svg><span class="g-time muted">${duration(row.to - row.from)}${row.open ? " …" : ""}</span></button></div>`;
  })}</div>`;
}

function Chosen({ row, task }) {
  if (!row) return html`<p class="muted note">Choose a row to see its result, its error and its history.</p>`;
  const step = row.step;
  const one = row.approval;
  return html`<div class="chosen"><header><h3><${Text} v=${row.label} /></h3><${Status} s=${row.status} />${row.superseded > 0 && html`<${Tag}>replaced by redo ${row.superseded}</${Tag}>`}<span class="grow"></span>
      ${mayOperate.value && !row.superseded && row.kind !== "phase" && html`<div class="actions">${step?.status === "unknown" && html`<${Button} kind="primary small" onClick=${() => settle(task.id, step.key)}>Settle …</${Button}>`}
        ${one?.status === "open" ? html`<${Button} kind="primary small" onClick=${() => approve(one)}>Approve</${Button}><${Button} kind="small" onClick=${() => reject(one)}>Reject …</${Button}>`
    : html`<${Button} kind="small" icon="redo" onClick=${() => redo(task, one ? `approval:${one.key}` : step.key)}>Redo …</${Button}>`}</div>`}</header>
    ${step && html`<${Facts} of=${[["Kind", step.kind], ["Attempt", step.attempt > 0 && `${step.attempt}${step.failures ? `, ${plural(step.failures, "failure")}` : ""}`], ["Once", step.once && "runs only once"], ["Started", html`<${At} at=${step.started} />`], ["Finished", step.finished && html`<${At} at=${step.finished} />`], ["Took", duration(row.to - row.from)], ["Next try", step.due && !step.finished && html`<${Ago} at=${step.due} future />`], ["Sub-task", step.child && html`<${Ref} kind="task" id=${step.child} />`], ["Progress", step.progress !== null && html`<${Progress} value=${step.progress} />`], ["Note of the redo", step.note && html`<${Text} v=${step.note} />`]]} />
      ${step.error && html`<div class="callout bad"><b><${Text} v=${step.error.type} />: <${Text} v=${step.error.message} max=${2000} /></b>${step.error.traceback.length > 0 && html`<pre tabindex="0" aria-label="traceback"><${Text} v=${step.error.traceback.join("\n")} max=${20000} /></pre>`}</div>`}
      ${step.result !== null && html`<h4>Result</h4><${Json} value=${step.result} />`}${step.validation !== null && step.validation !== undefined && html`<h4>Validation</h4><${Json} value=${step.validation} />`}`}
    ${one && html`<${Facts} of=${[["Asked", html`<${At} at=${one.created} />`], ["Decided", one.decided && html`<${At} at=${one.decided} />`], ["By", one.by && html`<${Text} v=${one.by} />`], ["Reason", one.reason && html`<${Text} v=${one.reason} max=${2000} />`], ["Automatic", one.auto && "yes"], ["Waited", duration(row.to - row.from)], ["Notifies", one.notify && html`<${Text} v=${one.notify} />`]]} />
      <h4>To be judged</h4><${Json} value=${one.shown} depth=${3} />`}</div>`;
}

// Controls

const topics = (task) => ["tasks", `task:${task.id}`];
async function redo(task, step) {
  await ask({ title: `Redo ${step}?`, action: "Redo", danger: true, body: html`<p>It is run again, and every step that started after it had ended. The results so far stay in the history.</p>`,
    fields: [{ name: "note", label: "Note for the step", type: "area", rows: 3 }, REASON],
    run: async ({ note, reason }) => { await change("POST", path`tasks/${task.id}/redo`, { step, note: note || null, reason: reason || null }, topics(task)); toast(`Redoing ${step}`); } });
}

const CONTROLS = {
  halt: ["Halt", "It and its sub-tasks halt before their next step.", false],
  continue: ["Continue", "The halted task continues.", false],
  stop: ["Stop", "It and its sub-tasks end as stopped. Finished steps stay recorded; it can be resumed.", true],
  resume: ["Resume", "It continues after its last finished step.", false],
  restart: ["Restart", "It runs again from the beginning. The results so far stay in the history.", true],
};
async function control(task, verb) {
  const [title, does, danger] = CONTROLS[verb];
  await ask({ title: `${title} ${task.id}?`, action: title, danger, body: html`<p>${does}</p>`, fields: [REASON],
    run: async ({ reason }) => { await change("POST", path`tasks/${task.id}/${verb}`, { reason: reason || null }, topics(task)); toast(`${title}: done`); } });
}
async function edit(task) {
  await ask({ title: `Edit ${task.id}`, action: "Save", fields: [{ name: "name", label: "Name", value: task.name }, { name: "context", label: "Context (JSON object)", type: "area", value: toJson(task.context, 2) }, { name: "settings", label: "Settings (JSON object)", type: "area", value: toJson(task.settings, 2) }, { name: "restarts", label: "Automatic restarts", type: "number", value: String(task.restarts) }],
    run: async (values) => { await change("PATCH", path`tasks/${task.id}`, { name: values.name, context: parseJson(values.context), settings: parseJson(values.settings), restarts: Number(values.restarts) }, topics(task)); toast("Saved"); } });
}
async function setAuto(task) {
  await ask({ title: task.auto ? `Ask again in ${task.id}?` : `Approve everything in ${task.id}?`, action: task.auto ? "Ask again" : "Approve everything", danger: !task.auto, body: html`<p>${task.auto ? "Later approvals wait for a person again." : "Every approval, open or later, passes without a person."}</p>`,
    run: async () => { await change("POST", path`tasks/${task.id}/auto`, { on: !task.auto }, topics(task)); } });
}
const POSSIBLE = { running: ["halt", "stop"], waiting: ["halt", "stop"], pending: ["halt", "stop"], halted: ["continue", "stop", "restart"], failed: ["resume", "restart"], stopped: ["resume", "restart"], completed: ["restart"] };

function Page({ id }) {
  const history = param("history") !== "0";
  const view = useData(query(path`tasks/${id}`, { history }), { topics: [`task:${id}`, "tasks"], every: 4, slowest: 10 });
  const tab = param("tab") || "steps";
  return html`<${Load} from=${view}>${({ task, steps, approvals, children }) => {
    const ended = task.ended ?? Math.max(tick.value, now());
    const rows = ganttRows(steps, approvals, ended);
    const from = Math.min(task.started ?? task.created, ...rows.map((row) => row.from));
    const to = Math.max(from + 1000, task.ended ?? 0, ...rows.map((row) => row.to));
    const chosen = rows.find((row) => row.key === param("sel"));
    return html`<div class="page"><header class="head"><a class="up" href=${link("tasks")}>Tasks</a><h1><${Text} v=${task.id} /></h1><${Status} s=${task.status} />${task.auto && html`<${Tag} tone="warn">auto</${Tag}>`}<span class="grow"></span>
        ${mayOperate.value && html`<div class="actions">${(POSSIBLE[task.status] ?? []).map((verb) => html`<${Button} key=${verb} kind=${CONTROLS[verb][2] ? "danger-quiet" : ""} onClick=${() => control(task, verb)}>${CONTROLS[verb][0]} …</${Button}>`)}
          ${!task.ended && html`<${Button} onClick=${() => setAuto(task)}>${task.auto ? "Ask again …" : "Auto …"}</${Button}>`}<${Button} onClick=${() => edit(task)}>Edit …</${Button}></div>`}</header>
      <p class="sub"><${Text} v=${task.name !== task.id ? task.name : ""} max=${200} /> <span class="muted">workflow</span> <${Text} v=${task.workflow} />${task.phase && html` <span class="muted">· phase</span> <${Text} v=${task.phase} />`}${task.holder && html` <span class="muted">· worker</span> <${Ref} kind="agent" id=${task.holder} />`}${task.session && html` <span class="muted">· session</span> <${Ref} kind="session" id=${task.session} />`}${task.parent && html` <span class="muted">· part of</span> <${Ref} kind="task" id=${task.parent} />`}${task.progress > 0 && html` <${Progress} value=${task.progress} />`} <${Text} v=${task.note} /></p>
      <${Why} task=${task} approvals=${approvals} />
      ${task.error && html`<div class="callout bad"><b><${Text} v=${task.error.type} />: <${Text} v=${task.error.message} max=${2000} /></b>${task.error.step && html`<span class="muted"> in <${Text} v=${task.error.step} /></span>`}${task.error.traceback.length > 0 && html`<details><summary>Traceback</summary><pre tabindex="0" aria-label="traceback"><${Text} v=${task.error.traceback.join("\n")} max=${20000} /></pre></details>`}</div>`}
      <${Tabs} label="Parts" items=${[["steps", "Steps", rows.length], ["children", "Sub-tasks", children.length], ["data", "Data"], ["events", "Events"]]} />
      ${tab === "steps" && html`<${Card} aside=${html`<label class="check"><input type="checkbox" checked=${history} onChange=${(event) => setParams({ history: event.target.checked ? "" : "0" })} /><span>redo history</span></label>`} title=${`${duration(to - from)} in all`}>
        ${rows.length ? html`<${Gantt} rows=${rows} from=${from} to=${to} selected=${param("sel")} choose=${(row) => setParams({ sel: row.key === param("sel") ? "" : row.key })} relative />
        <ul class="legend" aria-label="Legend"><li><i class="swatch good"></i>work</li><li><i class="swatch hatch"></i>waiting for a person</li><li><i class="swatch bad"></i>failed attempt</li><li><i class="swatch old"></i>replaced by a redo</li></ul>
        <${Chosen} row=${chosen} task=${task} />` : html`<${Empty} title="No step has started" />`}</${Card}>`}
      ${tab === "children" && (children.length ? html`<${Table} label="Sub-tasks" rows=${children} columns=${COLUMNS} href=${(one) => link("tasks", one.id)} fill=${false} />` : html`<${Empty} title="No sub-task" />`)}
      ${tab === "data" && html`<div class="columns"><${Card} title="Arguments"><${Json} value=${task.arguments} />${Object.keys(task.keywords).length > 0 && html`<h3>Keywords</h3><${Json} value=${task.keywords} />`}</${Card}><${Card} title="Result"><${Json} value=${task.result} /></${Card}><${Card} title="Context"><${Json} value=${task.context} /></${Card}><${Card} title="Settings"><${Json} value=${task.settings} /><${Facts} of=${[["Created", html`<${At} at=${task.created} />`], ["Started", html`<${At} at=${task.started} />`], ["Ended", html`<${At} at=${task.ended} />`], ["Restarts", `${task.restarted} of ${task.restarts}`], ["Lost workers", `${task.losses} of ${task.max_losses}`]]} /></${Card}></div>`}
      ${tab === "events" && html`<${EventList} subject=${`task:${id}`} fill=${false} />`}</div>`;
  }}</${Load}>`;
}

export default function Tasks({ parts }) {
  return parts.length ? html`<${Page} key=${parts[0]} id=${parts[0]} />` : html`<${List} />`;
}
