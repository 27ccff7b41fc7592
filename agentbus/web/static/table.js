// A table that draws only the rows in view, and does not move a row under the pointer.
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor.js";
import { param, setParams } from "./core.js";
import { Empty, html, number } from "./ui.js";

const NARROW = matchMedia("(max-width: 720px)");

export function useNarrow() {
  const [narrow, setNarrow] = useState(NARROW.matches);
  useEffect(() => {
    const changed = () => setNarrow(NARROW.matches);
    NARROW.addEventListener("change", changed);
    return () => NARROW.removeEventListener("change", changed);
  }, []);
  return narrow;
}

/** Keep the order of rows while they are held: known rows are updated in place, new ones wait, gone ones fade. */
function useHeldOrder(rows, keyOf, held) {
  const before = useRef(null);
  return useMemo(() => {
    if (!held || !before.current) {
      before.current = rows;
      return { rows, fresh: 0, gone: new Set() };
    }
    const present = new Map(rows.map((row) => [keyOf(row), row]));
    const gone = new Set();
    const kept = before.current.map((row) => {
      const key = keyOf(row);
      const found = present.get(key);
      present.delete(key);
      if (found === undefined) gone.add(key);
      return found ?? row;
    });
    // What was appended below all others moves nothing.
    const tail = [];
    for (let index = rows.length - 1; index >= 0 && present.has(keyOf(rows[index])); index--) tail.unshift(rows[index]);
    tail.forEach((row) => present.delete(keyOf(row)));
    before.current = [...kept, ...tail];
    return { rows: before.current, fresh: present.size, gone };
  }, [rows, held]);
}

export function sortRows(rows, columns, given) {
  const [, down, key] = /^(-?)(.*)$/.exec(given);
  const by = columns.find((column) => column.key === key)?.sort;
  if (!by) return rows;
  const sign = down ? -1 : 1;
  return [...rows].sort((one, other) => {
    const a = by(one), b = by(other);
    if (a === b) return 0;
    if (a === null || a === undefined) return 1;
    if (b === null || b === undefined) return -1;
    return a < b ? -sign : sign;
  });
}

/**
 * columns: key, title, width (of the grid), cell(row), sort(row), narrow (shown on a phone), end (aligned right).
 * onEnd is called when the last rows come into view; total is the number of all rows, if it is known.
 */
export function Table({ label, rows, columns, keyOf = (row) => row.id, href, onEnd, more = false, empty = "Nothing here", hint, sort: initial = "", fill = true, total }) {
  const box = useRef(null);
  const body = useRef(null);
  const narrow = useNarrow();
  const height = narrow ? 52 : 34;
  const [view, setView] = useState([0, 60]);
  const [held, setHeld] = useState(false);
  const sort = param("sort") || initial;
  const selected = param("sel");
  const sorted = useMemo(() => sortRows(rows, columns, sort), [rows, sort]);
  const { rows: shown, fresh, gone } = useHeldOrder(sorted, keyOf, held);
  const columnsShown = narrow ? columns.filter((column) => column.narrow) : columns;
  const template = columnsShown.map((column) => (narrow ? column.narrow : column.width) ?? "1fr").join(" ");

  const measure = useCallback(() => {
    const node = box.current;
    if (!node) return;
    const first = Math.max(0, Math.floor(node.scrollTop / height) - 8);
    const last = Math.ceil((node.scrollTop + node.clientHeight) / height) + 8;
    setView((old) => (old[0] === first && old[1] === last ? old : [first, last]));
  }, [height]);
  useLayoutEffect(measure, [shown.length, height]);
  useEffect(() => {
    const observer = new ResizeObserver(measure);
    observer.observe(box.current);
    return () => observer.disconnect();
  }, [measure]);
  useEffect(() => { if (more && onEnd && view[1] >= shown.length - 5) onEnd(); }, [view, shown.length, more]);

  const choose = (index, focus) => {
    const row = shown[Math.max(0, Math.min(shown.length - 1, index))];
    if (!row) return;
    setParams({ sel: keyOf(row) });
    const top = shown.indexOf(row) * height;
    const node = box.current;
    if (top < node.scrollTop) node.scrollTop = top;
    else if (top + 2 * height > node.scrollTop + node.clientHeight) node.scrollTop = top + 2 * height - node.clientHeight;
    if (focus) requestAnimationFrame(() => body.current?.querySelector("[data-selected] a")?.focus({ preventScroll: true }));
  };
  useEffect(() => {
    const key = (event) => {
      if (event.target.closest("input, textarea, select, dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
      const step = { j: 1, k: -1 }[event.key];
      const index = shown.findIndex((row) => String(keyOf(row)) === param("sel"));
      if (step) { event.preventDefault(); choose(index < 0 ? 0 : index + step, true); }
      else if (event.key === "Enter" && index >= 0 && href && !event.target.closest("a, button")) location.hash = href(shown[index]);
    };
    document.addEventListener("keydown", key);
    return () => document.removeEventListener("keydown", key);
  }, [shown, selected]);

  const window = shown.slice(view[0], view[1]);
  return html`<div class=${fill ? "table fill" : "table"}>
    ${fresh > 0 && html`<button type="button" class="fresh" onClick=${() => { setHeld(false); box.current.scrollTop = 0; }}>${number(fresh)} new</button>`}
    <div class="scroll" role="table" aria-label=${label} aria-rowcount=${(total ?? shown.length) + 1} ref=${box} tabindex="0" onScroll=${measure}
      onPointerEnter=${(event) => event.pointerType === "mouse" && setHeld(true)} onPointerLeave=${() => setHeld(false)}>
      <div class="thead" role="rowgroup"><div class="tr" role="row" aria-rowindex="1" style=${{ gridTemplateColumns: template }}>${columnsShown.map((column) => {
    const on = sort.replace("-", "") === column.key;
    return html`<div key=${column.key} role="columnheader" class=${column.end ? "end" : ""} aria-sort=${on ? (sort[0] === "-" ? "descending" : "ascending") : undefined}>${column.sort
      ? html`<button type="button" onClick=${() => setParams({ sort: on && sort[0] !== "-" ? `-${column.key}` : on ? "" : column.key })}>${column.title}<span aria-hidden="true">${on ? (sort[0] === "-" ? " ↓" : " ↑") : ""}</span></button>` : column.title || html`<span class="hidden">More</span>`}</div>`;
  })}</div></div>
      <div ref=${body} role="rowgroup" style=${{ paddingTop: `${view[0] * height}px`, paddingBottom: `${Math.max(0, shown.length - view[1]) * height}px` }}>
      ${window.map((row, index) => {
    const key = keyOf(row);
    const on = String(key) === selected;
    return html`<div key=${key} class=${`tr${gone.has(key) ? " gone" : ""}${on ? " on" : ""}`} role="row" aria-rowindex=${view[0] + index + 2} data-key=${key} data-selected=${on || undefined}
        style=${{ gridTemplateColumns: template, height: `${height}px` }}
        onClick=${(event) => { if (event.target.closest("a, button") || getSelection().toString()) return; setParams({ sel: String(key) }); if (href) location.hash = href(row); }}>
        ${columnsShown.map((column) => html`<div key=${column.key} role="cell" class=${column.end ? "end" : ""}>${column.cell(row)}</div>`)}</div>`;
  })}
      </div></div>
    ${!shown.length && html`<${Empty} title=${empty}>${hint}</${Empty}>`}</div>`;
}
