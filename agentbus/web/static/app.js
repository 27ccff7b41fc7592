// The frame: sign in, navigation, the state of the connection, and the screen that the URL names.
import { effect, h, render, useEffect, useRef, useState } from "./vendor.js";
import { connection, go, held, identity, link, mayOperate, paused, preferences, route, setPaused, setPreferences, signIn, signOut, start, trouble } from "./core.js";
import { asking, html, Icon, plain, Question, report, Text, Toasts } from "./ui.js";
import { inboxSize, Now, useInbox } from "./now.js";

const SCREENS = [
  ["now", "Now", () => Promise.resolve({ default: Now })],
  ["agents", "Agents", () => import("./agents.js")],
  ["lanes", "Timeline", () => import("./lanes.js")],
  ["queues", "Queues", () => import("./queues.js")],
  ["messages", "Messages", () => import("./messages.js")],
  ["tasks", "Tasks", () => import("./tasks.js")],
  ["sessions", "Sessions", () => import("./sessions.js")],
  ["state", "State", () => import("./state.js")],
  ["events", "Events", () => import("./events.js")],
  ["health", "Health", () => import("./health.js")],
];
const loaded = new Map([["now", Now]]);

function Login() {
  const [error, setError] = useState(null);
  const input = useRef(null);
  const submit = async (event) => {
    event.preventDefault();
    try { await signIn(input.current.value.trim()); } catch (problem) { setError(problem); }
  };
  return html`<main class="login"><form onSubmit=${submit}>
    <h1><img src="static/icon.svg" alt="" width="28" height="28" /> agentbus</h1>
    <p>Open the URL that <code>agentbus serve</code> prints, or enter a token.</p>
    <label class="field"><span>Token</span><input ref=${input} type="password" autocomplete="current-password" autofocus /></label>
    ${error && html`<div class="problem" role="alert"><b><${Text} v=${error.message} /></b></div>`}
    <button class="button primary" type="submit">Sign in</button>
    <p class="muted">A token is made by <code>agentbus token create operate</code>, or <code>read</code> to look only.</p>
  </form></main>`;
}

const CONNECTION = { live: ["good", "Live"], connecting: ["calm", "Connecting"], lost: ["bad", "Reconnecting"] };

function Live() {
  const [tone, text] = paused.value ? ["warn", held.value ? `Paused · ${held.value}` : "Paused"] : CONNECTION[connection.value];
  return html`<button type="button" class=${`live ${tone}`} aria-pressed=${String(paused.value)} title=${paused.value ? "Resume live updates (p)" : "Pause live updates (p)"} onClick=${() => setPaused(!paused.peek())}>
    <i aria-hidden="true"></i><span>${text}</span><${Icon} name=${paused.value ? "play" : "pause"} /></button>`;
}

/** Why nothing can be read, while that lasts. */
const Trouble = () => trouble.value && html`<div class="problem trouble" role="status"><b><${Text} v=${trouble.value.message} /></b>${trouble.value.fix && html`<p><${Text} v=${trouble.value.fix} /></p>`}<p class="muted">Trying again …</p></div>`;

function Theme() {
  const theme = preferences.value.theme;
  const next = { auto: "light", light: "dark", dark: "auto" }[theme];
  return html`<button type="button" class="icon-button" aria-label=${`Theme: ${theme}. Change to ${next}`} title=${`Theme: ${theme}`} onClick=${() => setPreferences({ theme: next })}>
    <${Icon} name=${{ auto: "auto", light: "sun", dark: "moon" }[theme]} /></button>`;
}

function Screen() {
  const { screen } = route.value;
  const known = SCREENS.find(([key]) => key === screen);
  const [, setReady] = useState(0);
  const Found = loaded.get(screen);
  useEffect(() => {
    if (known && !Found) known[2]().then((module) => { loaded.set(screen, module.default); setReady((n) => n + 1); }).catch(report);
  }, [screen]);
  useEffect(() => { document.querySelector("main")?.scrollTo(0, 0); }, [screen, route.value.parts.join("/")]);
  if (!known) return html`<div class="page"><h1>No such page</h1><p><a href="#/now">Now</a></p></div>`;
  return Found ? html`<${Found} key=${screen} parts=${route.value.parts} />` : null;
}

function Keys() {
  const [first, setFirst] = useState(false);
  useEffect(() => {
    const pressed = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || asking() || event.target.closest("input, textarea, select, dialog")) return;
      if (event.key === "/") {
        const search = document.querySelector("[data-search]");
        if (search) { event.preventDefault(); search.focus(); search.select(); }
      } else if (event.key === "p") setPaused(!paused.peek());
      else if (/^[0-9]$/.test(event.key)) go(link(SCREENS[(Number(event.key) + 9) % 10][0]));
      else if (event.key === "?") setFirst((shown) => !shown);
      else if (event.key === "Escape") setFirst(false);
    };
    document.addEventListener("keydown", pressed);
    return () => document.removeEventListener("keydown", pressed);
  }, []);
  return first && html`<aside class="keys" aria-label="Keys"><h2>Keys</h2><dl>
    <div><dt><kbd>1</kbd>–<kbd>0</kbd></dt><dd>screens</dd></div><div><dt><kbd>j</kbd> <kbd>k</kbd></dt><dd>next, previous</dd></div>
    <div><dt><kbd>Enter</kbd></dt><dd>open</dd></div><div><dt><kbd>a</kbd></dt><dd>approve</dd></div><div><dt><kbd>r</kbd></dt><dd>reject, with a reason</dd></div>
    <div><dt><kbd>/</kbd></dt><dd>search</dd></div><div><dt><kbd>p</kbd></dt><dd>pause updates</dd></div></dl></aside>`;
}

function Frame() {
  const me = identity.value;
  const waiting = inboxSize.value;
  const active = route.value.screen;
  useInbox(active === "now" ? 0 : 1);
  return html`<div class="frame">
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.querySelector("main").focus(); }}>Skip to the content</a>
    <nav class="side" aria-label="Screens">
      <a class="brand" href="#/now"><img src="static/icon.svg" alt="" width="20" height="20" /><b>agentbus</b></a>
      <ul>${SCREENS.map(([key, title]) => html`<li key=${key} data-on=${active === key || undefined}><a href=${link(key)} title=${title} aria-current=${active === key ? "page" : undefined}><${Icon} name=${key} /><span>${title}</span>
        ${key === "now" && waiting > 0 && html`<b class="badge" title=${`${waiting} waiting for a decision`}>${waiting}</b>`}</a></li>`)}</ul>
      <footer><div class="where" title=${plain(me.location)}><${Text} v=${me.location.split("/").slice(-2).join("/") || me.bus} /></div><div class="muted">${me.version}</div></footer>
    </nav>
    <header class="bar"><${Live} /><span class="grow"></span>
      ${!mayOperate.value && html`<span class="tag warn" title="This token or server permits no changes">read-only</span>`}
      <span class="who" title=${`role: ${me.role}`}><${Text} v=${me.operator} /></span>
      <${Theme} /><button type="button" class="icon-button" aria-label="Sign out" title="Sign out" onClick=${() => signOut().catch(report)}><${Icon} name="out" /></button></header>
    <main id="main" tabindex="-1"><${Trouble} /><${Screen} /></main><${Keys} />
  </div>`;
}

function App() {
  if (identity.value === null) return trouble.value ? html`<main class="login"><${Trouble} /></main>` : html`<p class="boot">agentbus</p>`;
  return html`${identity.value === false ? html`<${Login} />` : html`<${Frame} />`}<${Toasts} /><${Question} />`;
}

effect(() => {
  const title = SCREENS.find(([key]) => key === route.value.screen)?.[1] ?? "agentbus";
  const [first] = route.value.parts;
  document.title = `${inboxSize.value ? `(${inboxSize.value}) ` : ""}${first ? `${plain(first)} · ` : ""}${title} · agentbus`;
});

start();
// The code of the screen is there when the server has said who looks.
const [first, , read] = SCREENS.find(([key]) => key === route.peek().screen) ?? SCREENS[0];
read().then((module) => loaded.set(first, module.default)).catch(() => {});
render(h(App), document.getElementById("app"));
