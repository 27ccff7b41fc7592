// State: scopes, their entries, and a form to change them.
import { change, mayOperate, param, parseJson, path, query, setParams, toJson, useData } from "./core.js";
import { Ago, ask, Button, Card, Empty, Field, html, Json, Load, number, plural, Search, Tag, Text, toast, typed } from "./ui.js";

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

export default function State({ parts }) {
  const scopes = useData("state", { topics: ["state"], every: 15 });
  const q = param("q").toLowerCase();
  const all = (scopes.data.value?.items ?? []).filter((one) => !q || one.scope.toLowerCase().includes(q));
  const chosen = parts[0] ?? param("scope");
  return html`<div class="page"><header class="head"><h1>State</h1><span class="muted">${scopes.data.value && plural(scopes.data.value.items.length, "scope")}</span></header>
    <div class="split wide"><div><div class="filters"><${Search} label="Search scopes" /></div>
      <${Load} from=${scopes}>${() => (all.length ? html`<ul class="list" aria-label="Scopes">${all.slice(0, 500).map((one) => html`<li key=${one.scope}><button type="button" aria-pressed=${String(one.scope === chosen)} onClick=${() => setParams({ scope: one.scope, prefix: "" })}><b><${Text} v=${one.scope} /></b><small class="muted">${plural(one.entries, "entry", "entries")} · <${Ago} at=${one.updated} /></small></button></li>`)}</ul>` : html`<${Empty} title="No state yet" />`)}</${Load}></div>
    <div class="detail">${chosen ? html`<${Scope} key=${chosen} scope=${chosen} />` : html`<${Empty} title="Choose a scope">Agents, sessions and programs keep state in scopes of their own.</${Empty}>`}</div></div></div>`;
}
