// The log: every event, read in pages as they come into sight.

import { cls, html, useEffect, useRef, useState } from './dom.js';
import { clockMs, grouped, text } from './format.js';
import { Button, Empty, Failure, Rows, copy, download, note } from './parts.js';
import { href, route, setQuery } from './route.js';
import { chosen } from './session.js';
import { events, wholeLog } from './source.js';

const PAGE = 200;
const HEIGHT = 24;
const FAMILIES = ['task', 'edge', 'agent', 'exec', 'session', 'flow', 'frame', 'loop', 'budget', 'limit', 'channel'];

/** What an event says, in a line. @param {Loose} event */
function brief(event) {
  const { type, ...rest } = event;
  const words = rest.content ?? rest.text ?? rest.prompt ?? rest.message ?? rest.reason ?? rest.error?.message;
  if (rest.from && rest.to) return `${rest.from} → ${rest.to}`;
  if (rest.toolName) return `${rest.toolName} ${words ?? JSON.stringify(rest.input ?? rest.result ?? '')}`.slice(0, 300);
  if (typeof words === 'string') return words.replace(/\s+/g, ' ').slice(0, 300);
  return JSON.stringify(rest).slice(1, 300);
}

/** The tone of an event's name. @param {string} type */
function tone(type) {
  if (/failed|rejected|exceeded/.test(type)) return 'tone-bad';
  if (/complete$/.test(type)) return 'tone-good';
  if (/prompt|paused|wait|interrupted|cancelled|warning/.test(type)) return 'tone-warning';
  return '';
}

/**
 * Pages of events. Without a filter an event's row is its number; with one, pages follow each other.
 * @param {string} id @param {Record<string, any>} filter @param {number} last the newest event that may be shown
 */
function usePages(id, filter, last) {
  const isFiltered = Object.values(filter).some(Boolean);
  const key = JSON.stringify([id, filter]);
  const ref = useRef({ key: '', rows: /** @type {Map<number, any>} */ (new Map()), asked: new Set(), read: /** @type {Map<number, number>} */ (new Map()), count: 0, next: 1, isDone: false, busy: false });
  const [, redraw] = useState(0);
  const [error, setError] = useState((null));
  if (ref.current.key !== key) ref.current = { key, rows: new Map(), asked: new Set(), read: /** @type {Map<number, number>} */ (new Map()), count: 0, next: 1, isDone: false, busy: false };
  const mine = ref.current;
  const show = () => {
    if (mine === ref.current) redraw((n) => n + 1);
  };
  /** Reads what is not read of a page, and more of it after a while. @param {number} page */
  const readPage = async (page) => {
    const end = (page + 1) * PAGE;
    const from = mine.read.get(page) ?? page * PAGE;
    if (mine.asked.has(page) || from >= Math.min(last, end)) return;
    mine.asked.add(page);
    let wait = 500;
    try {
      const found = await events(id, { from: from + 1, limit: end - from });
      for (const envelope of found) mine.rows.set(envelope.seq - 1, envelope);
      mine.read.set(page, found.at(-1)?.seq ?? from);
      setError(null);
    } catch (failure) {
      wait = 2000;
      setError(failure);
    }
    setTimeout(() => {
      mine.asked.delete(page);
      show();
    }, wait);
    show();
  };
  const readNext = async () => {
    if (mine.busy || mine.isDone) return;
    mine.busy = true;
    try {
      const found = await events(id, { ...filter, from: mine.next, limit: PAGE });
      for (const envelope of found) mine.rows.set((mine.count += 1) - 1, envelope);
      mine.next = (found.at(-1)?.seq ?? mine.next - 1) + 1;
      mine.isDone = found.length < PAGE;
      setError(null);
    } catch (failure) {
      mine.isDone = true;
      setError(failure);
    }
    mine.busy = false;
    show();
  };
  useEffect(() => {
    if (!isFiltered) return;
    mine.isDone = false;
    readNext();
  }, [key, last]);
  /** @param {number} from @param {number} to */
  const want = (from, to) => {
    if (isFiltered) {
      if (to >= mine.count - PAGE / 2) readNext();
      return;
    }
    for (let page = Math.floor(from / PAGE); page <= Math.floor(to / PAGE); page += 1) readPage(page);
  };
  const total = isFiltered ? [...mine.rows.values()].filter((one) => one.seq <= last).length : last;
  return { at: (/** @type {number} */ row) => mine.rows.get(row), total, want, error, isDone: mine.isDone, isFiltered };
}

/** @param {{ session: Session }} _ */
export function Log({ session }) {
  const { types = '', of = '', event: wanted } = route.value.query;
  const last = session.at.value ?? session.lastSeq.value;
  const node = of === 'node' ? chosen.value : '';
  const pages = usePages(session.id, { types, node }, last);
  const open = wanted ? Number(wanted) : 0;
  const isLast = !session.at.value && !open && !pages.isFiltered;
  const [, setRange] = useState('');
  const [typed, setTyped] = useState(types);
  useEffect(() => setTyped(types), [types]);
  const range = useRef({ from: 0, to: 60 });
  useEffect(() => {
    pages.want(range.current.from, range.current.to);
  });
  const opened = open ? (pages.isFiltered ? null : pages.at(open - 1)) : null;
  const shownEvent = opened ?? (open ? [...Array(pages.total).keys()].map(pages.at).find((one) => one?.seq === open) : null);
  /** @param {string} family */
  const chooseTypes = (family) => {
    const now = new Set(types ? types.split(',') : []);
    const name = `${family}:*`;
    if (now.has(name)) now.delete(name);
    else now.add(name);
    setQuery({ types: [...now].join(',') || undefined, event: undefined });
  };
  return html`<div class="log">
    <div class="tools">
      <input type="search" class="filter" data-filter value=${typed} placeholder="Filter by type: agent:*  /" aria-label="Filter by type, such as agent:*" list="families"
        onInput=${(event) => setTyped(event.target.value)}
        onChange=${(event) => setQuery({ types: event.target.value.trim() || undefined, event: undefined })} />
      <div class="chips" role="group" aria-label="Families of events">
        ${FAMILIES.map((family) => html`<button type="button" class="chip" aria-pressed=${types.split(',').includes(`${family}:*`)} onClick=${() => chooseTypes(family)}>${family}</button>`)}
      </div>
      <label class="inline"><input type="checkbox" checked=${of === 'node'} disabled=${!chosen.value} onChange=${(event) => setQuery({ of: event.target.checked ? 'node' : undefined, event: undefined })} /><span>only ${chosen.value ? html`<span class="mono">${chosen.value}</span>` : 'the chosen node'}</span></label>
      <span class="grow"></span>
      <span class="num faint">${grouped(pages.total)}${pages.isFiltered && !pages.isDone ? '+' : ''} ${pages.isFiltered ? 'match' : 'events'}</span>
      <${Button} kind="small" onPress=${async () => {
        try {
          download(await wholeLog(session.id), `${session.id}.jsonl`);
        } catch (error) {
          note(error.message, 'bad');
        }
      }}>Download<//>
    </div>
    ${pages.error && html`<${Failure} error=${pages.error} />`}
    ${pages.total === 0 && !pages.error
      ? html`<${Empty} title=${pages.isFiltered ? (pages.isDone ? 'No event matches' : 'Looking…') : 'No event yet'} />`
      : html`<${Rows} class="log-rows" label="Events" total=${pages.total} height=${HEIGHT} stick=${isLast} show=${open && !pages.isFiltered ? open - 1 : undefined}
          onRange=${(from, to) => {
            range.current = { from, to };
            setRange(`${from}-${to}`);
          }}
          row=${(at) => {
            const envelope = pages.at(at);
            if (!envelope) return html`<div class="log-row" role="listitem" key=${at}><span class="num faint">${pages.isFiltered ? '' : at + 1}</span><span class="faint">…</span></div>`;
            return html`<div role="listitem" key=${at} class="log-item"><button type="button" class=${cls('log-row', open === envelope.seq && 'chosen')} aria-pressed=${open === envelope.seq} onClick=${() => setQuery({ event: open === envelope.seq ? undefined : envelope.seq })}>
              <span class="num faint">${envelope.seq}</span><span class="num faint log-time">${clockMs(envelope.timestamp)}</span>
              <span class=${cls('log-type', tone(envelope.event.type))}>${envelope.event.type}</span>
              <span class="log-task">${envelope.context.task ?? ''}</span><span class="faint">${brief(envelope.event)}</span>
            </button></div>`;
          }} />`}
    ${shownEvent && html`<section class="log-event" aria-label=${`Event ${shownEvent.seq}`}>
      <header><h2 class="minor">Event ${shownEvent.seq}</h2><span class="faint num">${clockMs(shownEvent.timestamp)}</span><span class="grow"></span>
        ${shownEvent.context.task && html`<a class="button small" href=${href(['s', session.id, 'graph'], { node: shownEvent.context.task })}>To its node</a>`}
        <a class="button small" href=${href(route.value.path, { ...route.value.query, at: shownEvent.seq })}>The run at this event</a>
        <${Button} kind="small" onPress=${() => copy(JSON.stringify(shownEvent), 'Event')}>Copy as JSON<//>
        <button type="button" class="icon" aria-label="Close the event" onClick=${() => setQuery({ event: undefined })}>✕</button></header>
      <pre class="code" tabindex="0" aria-label="The event">${text(shownEvent)}</pre>
    </section>`}
  </div>`;
}
