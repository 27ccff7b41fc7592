// State: scopes, their entries, and a form to change them; and the histories that agent frameworks store.
import { useState } from "./vendor.js";
import { change, get, mayOperate, param, parseJson, path, query, setParams, toJson, useData } from "./core.js";
import { Ago, ask, Button, bytes, Card, Empty, Field, html, Json, Load, number, plural, Search, Tabs, Tag, Text, toast, typed } from "./ui.js";

async function edit(scope, one) {
  await ask({ title: one ? `Change ${one.key}` : "Set an entry", action: "Save", fields: [
    ...(one ? [] : [{ name: "key", label: "Key", required: true }]),
    { name: "value", label: "Value: JSON, or text", type: "area", rows: 8, value: one ? toJson(one.value, 2) : "" }, { name: "ttl", label: "Expires after … seconds", type: "number", value: "" }],
  run: async ({ key, value, ttl }) => {
    await change("PUT", path`state/${scope}/entries/${one?.key ?? key.trim()}`, { value: typed(value, parseJson), ttl: ttl ? Number(ttl) : null, type: one?.type ?? "user_data", if_version: one?.version ?? 0 }, ["state"]);
    toast("Saved");
  } });
}
async function remove(scope, one) {
  await ask({ title: `Delete ${one.key}?`, action: "Delete 1 entry", danger: true, body: html`<p>The entry is deleted from <b><${Text} v=${scope} /></b>.</p>`,
    run: async () => { await change("DELETE", query(path`state/${scope}/entries/${one.key}`, { if_version: one.version }), undefined, ["state"]); toast("Deleted"); } });
}

function Scope({ scope }) {
  const prefix = param("prefix");
  const found = useData(query(path`state/${scope}/entries`, { prefix, limit: 1000 }), { topics: ["state"], every: 5 });
  return html`<${Card} title=${html`<${Text} v=${scope} />`} aside=${mayOperate.value && html`<${Button} kind="small" onClick=${() => edit(scope, null)}>Set …</${Button}>`}>
    <div class="filters"><${Field} name="prefix" label="Prefix" /></div>
    <${Load} from=${found}>${(page) => (page.items.length ? html`<ul class="rows">${page.items.map((one) => html`<li key=${one.key} class="tall"><div class="key"><b class="mono"><${Text} v=${one.key} /></b><small class="muted">v${one.version} · <${Text} v=${one.author ?? "–"} /> · <${Ago} at=${one.updated} />${one.expires && html` · expires <${Ago} at=${one.expires} future />`}</small>${one.type !== "user_data" && html`<${Tag}>${one.type}</${Tag}>`}</div>
      <div class="what">${one.error ? html`<span class="bad-text"><${Text} v=${one.error} /></span>` : html`<${Json} value=${one.value} depth=${1} />`}</div>
      ${mayOperate.value && html`<div class="actions"><${Button} kind="quiet small" onClick=${() => edit(scope, one)}>Change …</${Button}><${Button} kind="quiet small" onClick=${() => remove(scope, one)}>Delete …</${Button}></div>`}</li>`)}</ul>${page.cursor && html`<p class="muted note">the first ${number(page.items.length)} entries; narrow the prefix to see others</p>`}` : html`<${Empty} title="No entry" />`)}</${Load}></${Card}>`;
}

/** The body of an item, read when it is opened: JSON, or text. */
function Body({ url, number }) {
  const [body, setBody] = useState();
  return body === undefined ? html`<${Button} kind="quiet small" onClick=${async () => {
    const { items } = await get(query(url, { cursor: number - 1, limit: 1, bodies: true }));
    setBody(typed(new TextDecoder().decode(Uint8Array.from(atob(items[0].body), (one) => one.charCodeAt(0))), parseJson));
  }}>Body</${Button}>` : html`<${Json} value=${body} depth=${1} />`;
}

function History({ kind, name }) {
  const url = path`histories/${kind}/${name}`;
  const found = useData(query(url, { limit: 1000 }), { every: 5 });
  const remove = () => ask({ title: `Delete ${name}?`, action: "Delete 1 history", danger: true, body: html`<p>The history is deleted with its items.</p>`,
    run: async () => { await change("DELETE", url, undefined, ["state"]); setParams({ kind: "", name: "" }); toast("Deleted"); } });
  return html`<${Card} title=${html`<${Text} v=${name} />`} aside=${mayOperate.value && html`<${Button} kind="small" onClick=${remove}>Delete …</${Button}>`}>
    <${Load} from=${found}>${(page) => html`<${Json} value=${page.history.meta} depth=${1} /><ul class="rows">${page.items.map((one) => html`<li key=${one.number} class="tall"><div class="key"><b class="mono"><${Text} v=${one.key} /></b><small class="muted"><${Text} v=${one.encoding} /> · ${bytes(one.size)} · <${Ago} at=${one.created} />${one.part && html` · <${Text} v=${one.part} />`}</small></div>
      <div class="what"><${Json} value=${one.meta} depth=${1} /><${Body} url=${url} number=${one.number} /></div></li>`)}</ul>${page.cursor && html`<p class="muted note">the first ${number(page.items.length)} items</p>`}`}</${Load}></${Card}>`;
}

export default function State({ parts }) {
  const old = param("tab") === "histories";
  const found = useData(old ? "histories?limit=1000" : "state", { topics: ["state"], every: 15 });
  const q = param("q").toLowerCase();
  const all = (found.data.value?.items ?? []).map((one) => ({ ...one, title: one.scope ?? one.name })).filter((one) => !q || one.title.toLowerCase().includes(q));
  const kind = param("kind"), chosen = parts[0] ?? param(old ? "name" : "scope");
  return html`<div class="page"><header class="head"><h1>State</h1><span class="muted">${found.data.value && number(found.data.value.items.length)}</span></header>
    <${Tabs} label="Parts" items=${[["scopes", "Scopes"], ["histories", "Histories"]]} />
    <div class="split wide"><div><div class="filters"><${Search} label="Search" /></div>
      <${Load} from=${found}>${() => (all.length ? html`<ul class="list" aria-label=${old ? "Histories" : "Scopes"}>${all.slice(0, 500).map((one) => html`<li key=${`${one.kind} ${one.title}`}><button type="button" aria-pressed=${String(one.title === chosen && (!old || one.kind === kind))} onClick=${() => setParams(old ? { kind: one.kind, name: one.name } : { scope: one.scope, prefix: "" })}><b><${Text} v=${one.title} /></b><small class="muted">${old ? html`${one.kind} · ${plural(one.items, "item")} · ${bytes(one.size)}` : plural(one.entries, "entry", "entries")} · <${Ago} at=${one.updated} /></small></button></li>`)}</ul>` : html`<${Empty} title=${old ? "No history yet" : "No state yet"} />`)}</${Load}></div>
    <div class="detail">${!chosen ? html`<${Empty} title=${old ? "Choose a history" : "Choose a scope"}>${old ? "Agent frameworks keep conversations and runs here." : "Agents, sessions and programs keep state in scopes of their own."}</${Empty}>` : old ? html`<${History} key=${`${kind} ${chosen}`} kind=${kind} name=${chosen} />` : html`<${Scope} key=${chosen} scope=${chosen} />`}</div></div></div>`;
}
