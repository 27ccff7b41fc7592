// Events: the audit log, newest first, and as it happens.
import { link, param } from "./core.js";
import { Ago, Clear, Field, html, Load, Select, stamp, Text } from "./ui.js";
import { Table } from "./table.js";
import { useList } from "./messages.js";

const PAGES = { agent: "agents", task: "tasks", session: "sessions", message: "messages" };
const KINDS = ["agent_registered", "agent_completed", "agent_suspected", "agent_recovered", "agent_failed", "agent_stopped", "agent_taken_over", "agent_deleted", "approval_requested", "approval_decided", "message_dead", "messages_requeued", "messages_purged",
  "process_dead", "quotas_changed", "retention_applied", "retention_changed", "session_started", "session_interrupted", "session_continued", "session_completed", "session_failed", "session_recovered", "session_rolled_back", "step_settled",
  "task_started", "task_waiting", "task_completed", "task_failed", "task_stopped", "task_halted", "task_redone", "task_restarted", "task_edited", "token_created", "token_revoked", "type_defined"];
const TONES = [[/fail|dead|interrupted/, "bad"], [/suspect|halt|stopped|purged|deleted|revoked/, "warn"], [/approval|waiting|settled/, "ask"], [/completed|decided/, "done"], [/registered|started|running|continued|recovered|resumed/, "good"]];
/** Facts that are wall times. */
const TIMES = new Set(["until", "expires"]);
const toneOf = (kind) => TONES.find(([pattern]) => pattern.test(kind))?.[1] ?? "calm";

const COLUMNS = [
  { key: "at", title: "Time", width: "146px", cell: (one) => html`<time class="mono muted" datetime=${new Date(one.at).toISOString()}>${stamp(one.at)}</time>` },
  { key: "kind", title: "Event", width: "170px", narrow: "minmax(0, 1fr)", cell: (one) => html`<span class=${`status ${toneOf(one.kind)}`}><i aria-hidden="true"></i>${one.kind.replaceAll("_", " ")}</span>` },
  { key: "subject", title: "Subject", width: "minmax(140px, 1.2fr)", narrow: "minmax(0, 1fr)", cell: (one) => html`<span class="muted">${one.subject_kind} </span>${PAGES[one.subject_kind] ? html`<a class="ref" href=${link(PAGES[one.subject_kind], one.subject)}><${Text} v=${one.subject} /></a>` : html`<${Text} v=${one.subject} />`}` },
  { key: "actor", title: "By", width: "minmax(90px, .7fr)", cell: (one) => (one.actor ? html`<${Text} v=${one.actor} />` : html`<span class="muted">bus</span>`) },
  { key: "facts", title: "Facts", width: "minmax(160px, 3fr)", cell: (one) => html`<span class="what">${Object.entries(one.facts).filter(([, value]) => value !== null).map(([name, value]) => html`<span key=${name} class="fact"><span class="muted"><${Text} v=${name} /></span> <${Text} v=${TIMES.has(name) && Number.isInteger(value) ? stamp(value) : value} max=${200} /></span>`)}</span>` },
  { key: "ago", title: "", width: "0", narrow: "76px", end: true, cell: (one) => html`<span class="only-narrow"><${Ago} at=${one.at} /></span>` },
];

export function EventList({ subject, kind, fill = true }) {
  const list = useList("events", { last: true, subject, kind }, subject ? [subject] : ["events"]);
  return html`<${Load} from=${list.head}>${() => html`<${Table} label="Events" rows=${list.items} columns=${COLUMNS} more=${Boolean(list.cursor)} onEnd=${list.more} fill=${fill} empty="No event matches" />`}</${Load}>`;
}

export default function Events() {
  return html`<div class="page full"><header class="head"><h1>Events</h1><span class="muted">the audit log, newest first; new events appear as they happen</span></header>
    <div class="filters"><${Select} name="kind" label="Kind" options=${KINDS} /><${Field} name="subject" label="Subject" placeholder="agent:planner-1" /><${Clear} names=${["kind", "subject"]} /></div>
    <${EventList} subject=${param("subject") || undefined} kind=${param("kind") || undefined} /></div>`;
}
