// Now: what waits for a person, what is broken, and counts.
import { computed, useEffect } from "./vendor.js";
import { change, link, mayOperate, param, parseJson, path, resource, setParams, tick, useData } from "./core.js";
import { Ago, ask, asking, Button, bytes, Card, Chart, duration, Empty, html, Json, Load, number, plural, REASON, Ref, report, Status, Tag, Text, toast, typed } from "./ui.js";

const ASKED = "approvals?limit=200";
const CUT = "recovery/interrupted";
const HELD = "holds?limit=200";
const asked = resource(ASKED, { topics: ["tasks"], every: 30 });
const cut = resource(CUT, { topics: ["sessions", "agents"], every: 30 });
const held = resource(HELD, { topics: ["messages"], every: 30 });
const overview = resource("overview", { topics: ["any", "messages"], every: 15, slowest: 120 });

/** Everything that waits for a decision, oldest first. */
export const inbox = computed(() => {
  const approvals = (asked.data.value?.items ?? []).map((one) => ({ kind: "approval", key: `approval:${one.task}:${one.key}`, since: one.created, one }));
  const steps = (overview.data.value?.asked ?? []).filter((one) => one.kind === "step")
    .map((one) => ({ kind: "step", key: `step:${one.task}:${one.name}`, since: one.since, one }));
  const sessions = (cut.data.value?.sessions ?? []).map((one) => ({ kind: "session", key: `session:${one.session}`, since: tick.peek() - one.inactive, one }));
  const threads = (held.data.value?.items ?? []).map((one) => ({ kind: "thread", key: `thread:${one.thread}`, since: one.since, one }));
  return [...approvals, ...steps, ...sessions, ...threads].sort((a, b) => a.since - b.since);
});
export const inboxSize = computed(() => inbox.value.length);

/** Keep the inbox up to date on every screen: its size is in the title. */
export function useInbox(last) {
  useData(ASKED, { last });
  useData(CUT, { last });
  useData(HELD, { last });
  useData("overview", { last: 2 });
}

export const approve = (one, reason) => change("POST", path`tasks/${one.task}/approve`, { name: one.key, reason: reason || null }, ["tasks"]);
export const reject = (one) => ask({
  title: `Reject ${one.key}`, action: "Reject", danger: true, fields: [{ ...REASON, required: true, placeholder: "what should be different" }],
  body: html`<p>Task <b><${Text} v=${one.task} /></b> continues with a rejection and your reason.</p>`,
  run: ({ reason }) => change("POST", path`tasks/${one.task}/reject`, { name: one.key, reason }, ["tasks"]),
});

export function settle(task, step) {
  return ask({
    title: `Settle ${step}`, action: "Settle",
    body: html`<p>The worker was lost while this step ran, and it must run only once. Find out what happened, then record it.</p>`,
    fields: [
      { name: "outcome", label: "Outcome", type: "select", options: ["it succeeded", "it failed", "run it again"], required: true },
      { name: "value", label: "Result (JSON), or error", type: "area" },
    ],
    run: ({ outcome, value }) => change("POST", path`tasks/${task}/settle`, outcome === "run it again" ? { step, redo: true }
      : outcome === "it failed" ? { step, error: value || "failed" } : { step, result: typed(value, parseJson) }, ["tasks"]),
  });
}

export const release = (one) => change("POST", path`holds/${one.thread}/release`, undefined, ["messages"]);
export const discard = (one) => ask({
  title: `Discard ${plural(one.held, "message")}?`, action: `Discard ${number(one.held)}`, danger: true, fields: [REASON],
  body: html`<p>The held messages of thread <b><${Text} v=${one.thread} /></b> are not delivered. Its next message waits for a person again.</p>`,
  run: ({ reason }) => change("POST", path`holds/${one.thread}/discard`, { reason: reason || null }, ["messages"]),
});

function Held({ one, on, item, may }) {
  return html`<article class=${on ? "item on" : "item"} data-item=${item.key} aria-label=${`Thread ${one.thread}`}>
    <div class="item-head"><${Tag} tone="warn">held thread</${Tag}><h3><a class="ref" href=${`${link("messages")}?correlation=${encodeURIComponent(one.thread)}`}><${Text} v=${one.thread} /></a></h3><span class="grow"></span><span class="muted"><${Ago} at=${one.since} /></span></div>
    <p class="muted">${one.agents.length > 0 && html`<${Text} v=${one.agents.join(", ")} max=${160} /> sent ${plural(one.sent, "message")} without progress. `}${plural(one.held, "message")} ${one.held === 1 ? "waits" : "wait"} for your decision.</p>
    ${may && html`<div class="actions"><${Button} kind="primary" icon="check" onClick=${async () => { await release(one); toast(`Released ${one.thread}`); }}>Release <kbd>a</kbd></${Button}>
      <${Button} icon="cross" onClick=${async () => { await discard(one); toast(`Discarded ${one.thread}`); }}>Discard <kbd>r</kbd></${Button}></div>`}</article>`;
}

function Item({ item, on }) {
  const one = item.one;
  const may = mayOperate.value;
  if (item.kind === "approval") {
    return html`<article class=${on ? "item on" : "item"} data-item=${item.key} aria-label=${`Approval ${one.key}`} aria-current=${on ? "true" : undefined}>
      <div class="item-head"><${Tag} tone="ask">approval</${Tag}><h3><${Text} v=${one.name} /></h3><span class="muted">of <${Ref} kind="task" id=${one.task} /></span><span class="grow"></span>
        <span class="muted"><${Ago} at=${one.created} />${one.expires && html` · expires <${Ago} at=${one.expires} future />`}</span></div>
      ${one.shown !== null && one.shown !== undefined && html`<div class="judge"><${Json} value=${one.shown} depth=${3} label="to be judged" /></div>`}
      ${may && html`<div class="actions"><${Button} kind="primary" icon="check" onClick=${async () => { await approve(one); toast(`Approved ${one.key} of ${one.task}`); }}>Approve <kbd>a</kbd></${Button}>
        <${Button} icon="cross" onClick=${async () => { await reject(one); toast(`Rejected ${one.key} of ${one.task}`); }}>Reject <kbd>r</kbd></${Button}></div>`}</article>`;
  }
  if (item.kind === "step") {
    return html`<article class=${on ? "item on" : "item"} data-item=${item.key} aria-label=${`Step ${one.name}`}>
      <div class="item-head"><${Tag} tone="warn">step to settle</${Tag}><h3><${Text} v=${one.name} /></h3><span class="muted">of <${Ref} kind="task" id=${one.task} /></span><span class="grow"></span><span class="muted"><${Ago} at=${one.since} /></span></div>
      <p class="muted">It must run only once, and its worker was lost while it ran: only you can tell whether it happened.</p>
      ${may && html`<div class="actions"><${Button} kind="primary" onClick=${() => settle(one.task, one.name)}>Settle …</${Button}></div>`}</article>`;
  }
  if (item.kind === "thread") return html`<${Held} one=${one} on=${on} item=${item} may=${may} />`;
  return html`<${CutOff} one=${one} on=${on} item=${item} may=${may} />`;
}

const WORDS = { resume: "Resume", complete: "Complete", abandon: "Abandon", rollback: "Roll back", follow_on: "Start a follow-on" };
export const optionWords = WORDS;

/** Carry out an option of a recovery plan. */
export async function recover(session, option) {
  const verb = option.action.replace("_", "-");
  const fields = option.action === "abandon" ? [{ ...REASON, required: true }]
    : option.action === "follow_on" ? [{ name: "operation", label: "Operation", required: true }, { name: "id", label: "Id of the new session" }] : [];
  const done = await ask({
    title: `${WORDS[option.action] ?? option.action} ${session}?`, action: WORDS[option.action] ?? option.action, fields, danger: option.action === "abandon" || option.action === "rollback",
    body: html`<p><${Text} v=${option.does} /></p>`,
    run: (values) => change("POST", path`sessions/${session}/recovery/${verb}`,
      option.action === "abandon" ? { reason: values.reason } : option.action === "follow_on" ? { operation: values.operation, id: values.id || null }
        : option.action === "rollback" ? { checkpoint: option.checkpoint ?? null } : {}, ["sessions", "agents", `session:${session}`]),
  });
  toast(`${WORDS[option.action] ?? option.action}: done`);
  return done;
}

function CutOff({ one, on, item, may }) {
  const plan = useData(path`sessions/${one.session}/recovery`, { topics: ["sessions", `session:${one.session}`] });
  const options = plan.data.value?.options ?? [];
  const kind = one.status === "interrupted" ? "interrupted" : one.failed ? "degraded" : "deserted";
  return html`<article class=${on ? "item on" : "item"} data-item=${item.key} aria-label=${`Session ${one.session}`}>
    <div class="item-head"><${Tag} tone=${kind === "interrupted" ? "bad" : "warn"}>${kind} session</${Tag}><h3><${Ref} kind="session" id=${one.session} /></h3><span class="muted"><${Text} v=${one.operation} /></span><span class="grow"></span><span class="muted">inactive ${duration(one.inactive)}</span></div>
    ${one.error && html`<p><${Text} v=${one.error} /></p>`}
    <p class="muted">${plural(one.agents, "agent")}, ${number(one.active)} live, ${number(one.failed)} failed${options[0] && html`. Likeliest: <b>${WORDS[options[0].action] ?? options[0].action}</b> – <${Text} v=${options[0].does} />`}</p>
    ${may && options.length > 0 && html`<div class="actions">${options.slice(0, 3).map((option, index) => html`<${Button} key=${option.action} kind=${index ? "" : "primary"} onClick=${() => recover(one.session, option)}>${WORDS[option.action] ?? option.action} …</${Button}>`)}
      <a class="button quiet" href=${link("sessions", one.session)}>Plan</a></div>`}</article>`;
}

export function Evidence({ of }) {
  if (!of) return null;
  const parts = Object.entries(of).filter(([name]) => name !== "verdict");
  return html`<span class="evidence">${of.verdict && html`<${Tag} tone="bad"><${Text} v=${of.verdict} /></${Tag}>`} ${parts.map(([name, value]) => html`<span key=${name}><span class="muted"><${Text} v=${name.replaceAll("_", " ")} /></span> <${Text} v=${typeof value === "number" && name.endsWith("_age") ? `${Math.round(value)} s` : value} /></span>`)}</span>`;
}

export const requeue = (messages) => ask({
  title: `Requeue ${plural(messages.length, "dead letter")}?`, action: `Requeue ${messages.length}`,
  body: html`<p>They are delivered again, with their attempts counted from zero.</p>`,
  run: async () => { const found = await change("POST", "messages/requeue", { message_ids: messages.map((one) => one.message_id) }, ["messages"]); toast(`Requeued ${plural(found.count, "message")}`); },
});

/** A pool with work that no live agent reads. */
export const unattended = (one) => one.kind === "pool" && one.queued > 0 && one.members === 0;

function Broken() {
  const agents = useData("agents?status=suspect,failed&limit=50", { topics: ["agents"], every: 20 });
  const dead = useData("dead-letters?limit=5", { topics: ["messages"], every: 30 });
  const queues = useData("queues?kind=pool&limit=1000", { topics: ["messages", "agents"], every: 15 });
  const counts = overview.data.value?.counts;
  const bad = (agents.data.value?.items ?? []).slice().sort((a, b) => b.updated - a.updated);
  const letters = dead.data.value?.items ?? [];
  const alone = (queues.data.value?.items ?? []).filter(unattended);
  if (!bad.length && !letters.length && !alone.length) return html`<${Card} title="Broken"><${Empty} title="Nothing is broken" /></${Card}>`;
  return html`<${Card} title="Broken"><ul class="rows">
    ${alone.map((one) => html`<li key=${one.recipient}><${Status} s="error" text="no member" /><a class="ref" href=${`${link("messages")}?to=${encodeURIComponent(one.recipient)}&status=queued`}><b>${one.recipient}</b></a><span>${plural(one.queued, "message")} wait, the oldest for ${duration(one.oldest)}; no live agent is a member</span></li>`)}
    ${bad.slice(0, 12).map((one) => html`<li key=${one.id}><${Status} s=${one.status} /><${Ref} kind="agent" id=${one.id} /><span class="what"><${Text} v=${one.error} max=${160} /> <${Evidence} of=${one.evidence} /></span><span class="muted end"><${Ago} at=${one.updated} /></span></li>`)}
    ${bad.length > 12 && html`<li><a href=${`${link("agents")}?status=suspect,failed`}>${number((counts?.agents.failed ?? 0) + (counts?.agents.suspect ?? 0))} agents in all</a></li>`}
    ${letters.map((one) => html`<li key=${one.id}><${Status} s="dead" text="dead letter" /><a class="ref" href=${link("messages", one.message_id)}><${Text} v=${one.type} /></a><span class="what">to <b>${one.recipient}</b>: <${Text} v=${one.error} max=${160} /></span>${mayOperate.value && html`<${Button} kind="quiet small" onClick=${() => requeue([one])}>Requeue</${Button}>`}<span class="muted end"><${Ago} at=${one.finished} /></span></li>`)}
    ${(counts?.messages.dead ?? 0) > letters.length && html`<li><a href=${`${link("messages")}?status=dead`}>${plural(counts.messages.dead, "dead letter")} in all</a></li>`}
  </ul></${Card}>`;
}

const COUNTED = [["running", "agents"], ["suspect", "agents"], ["failed", "agents"], ["queued", "messages"], ["leased", "messages"], ["scheduled", "messages"], ["dead", "messages"]];

function Counts() {
  return html`<${Load} from=${overview}>${(found) => html`<div class="counts">
    ${COUNTED.map(([status, kind]) => html`<a key=${kind + status} class="count" href=${`${link(kind)}?status=${status}`}><b>${number(found.counts[kind][status] ?? 0)}</b><span>${kind} ${status}</span></a>`)}
    <a class="count" href=${link("tasks")}><b>${number(found.tasks.length)}${found.tasks.length >= 20 ? "+" : ""}</b><span>tasks open</span></a>
    <a class="count" href=${link("queues")}><b>${found.oldest_waiting === null ? "–" : duration(found.oldest_waiting)}</b><span>oldest waiting</span></a>
    <a class="count" href=${link("health")}><b>${bytes(found.database_bytes)}</b><span>database</span></a></div>`}</${Load}>`;
}

export const useRates = () => useData("rates", { topics: [], every: 20, last: 3 });

export function Rates({ height = 120 }) {
  const found = useRates().data.value;
  const minutes = found?.minutes ?? [];
  if (!minutes.length) return html`<p class="muted">No figures yet.</p>`;
  const of = (name) => minutes.map((one) => one[name]);
  return html`<${Chart} times=${of("at")} height=${height} label="Messages per minute"
    series=${[{ name: "sent per minute", tone: "info", values: of("sent") }, { name: "acked per minute", tone: "good", values: of("acked") }, { name: "dead per minute", tone: "bad", values: of("dead") }]} />
    <p class="muted note">counted by this server since <${Ago} at=${found.since} /></p>`;
}

export function Now() {
  const items = inbox.value;
  const selected = param("sel");
  useEffect(() => {
    const key = async (event) => {
      if (asking() || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
      const index = items.findIndex((one) => one.key === param("sel"));
      const step = { j: 1, k: -1 }[event.key];
      if (step) {
        const next = items[Math.max(0, Math.min(items.length - 1, index < 0 ? 0 : index + step))];
        if (!next) return;
        event.preventDefault();
        setParams({ sel: next.key });
        requestAnimationFrame(() => document.querySelector(`[data-item="${CSS.escape(next.key)}"]`)?.scrollIntoView({ block: "nearest" }));
        return;
      }
      const item = items[index] ?? (items.length === 1 ? items[0] : undefined);
      if (!item || !mayOperate.peek()) return;
      try {
        if (event.key === "a" && item.kind === "approval") { await approve(item.one); toast(`Approved ${item.one.key} of ${item.one.task}`); }
        else if (event.key === "a" && item.kind === "step") await settle(item.one.task, item.one.name);
        else if (event.key === "a" && item.kind === "thread") { await release(item.one); toast(`Released ${item.one.thread}`); }
        else if (event.key === "r" && item.kind === "thread") { event.preventDefault(); await discard(item.one); toast(`Discarded ${item.one.thread}`); }
        else if (event.key === "r" && item.kind === "approval") { event.preventDefault(); await reject(item.one); toast(`Rejected ${item.one.key} of ${item.one.task}`); }
        else if (event.key === "Enter" && !event.target.closest("a, button")) location.hash = item.kind === "session" ? link("sessions", item.one.session) : item.kind === "thread" ? `${link("messages")}?correlation=${encodeURIComponent(item.one.thread)}` : link("tasks", item.one.task);
      } catch (error) { report(error); }
    };
    document.addEventListener("keydown", key);
    return () => document.removeEventListener("keydown", key);
  }, [items]);
  return html`<div class="page"><header class="head"><h1>Now</h1><span class="muted">${items.length ? `${plural(items.length, "decision")} waiting for a person` : "no decision is waiting"}</span></header>
    <section class="inbox" aria-label="Waiting for a person"><h2 class="hidden">Waiting for a person</h2>
      ${asked.data.value === undefined ? html`<${Load} from=${asked}>${() => null}</${Load}>` : items.length === 0 ? html`<${Card}><${Empty} title="Nothing waits for you">Approvals, steps to settle, interrupted sessions and held messages appear here.</${Empty}></${Card}>`
    : items.slice(0, 60).map((item) => html`<${Item} key=${item.key} item=${item} on=${item.key === selected} />`)}
      ${items.length > 60 && html`<p class="muted">and ${number(items.length - 60)} more</p>`}</section>
    <${Broken} />
    <section aria-label="Counts"><h2 class="hidden">Counts</h2><${Counts} /></section>
    <${Card} title="Throughput"><${Rates} /></${Card}></div>`;
}
