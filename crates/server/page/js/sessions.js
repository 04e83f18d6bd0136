// All sessions: those that wait for a person first.

import { cls, html, useMemo, useState } from './dom.js';
import { ago, allTokens, count, duration, plural, spent } from './format.js';
import { hasOlder, listError, loadLists, loadOlder, now, sessions, sortedSessions, took, waitsFor } from './lists.js';
import { Button, Empty, Failure, Loading, SessionSign } from './parts.js';
import { href, route, setQuery } from './route.js';

/** @param {{ entry: Loose, mark: string | null, onMark: (id: string) => void }} _ */
function Row({ entry, mark, onMark }) {
  const id = entry.sessionId;
  const isMarked = mark === id;
  const used = allTokens(entry.usage);
  const compare = mark && !isMarked ? href(['compare'], { a: mark, b: id }) : null;
  return html`<li class=${cls('session', entry.questions > 0 && 'calls')}>
    <a class="session-main" href=${href(['s', id, 'graph'])}>
      <span class="session-state"><${SessionSign} state=${entry.state} /></span>
      <span class="session-flow">${entry.flow}${entry.isReplay && ' (replay)'}</span>
      <span class="session-id mono faint">${id}</span>
      <span class=${entry.questions > 0 ? 'session-waits' : 'faint'}>${waitsFor(entry)}</span>
    </a>
    <span class="session-fact num" title="duration">${duration(took(entry))}</span>
    <span class="session-fact num" title="tokens">${used ? count(used) : ''}</span>
    <span class="session-fact num" title="cost">${spent(entry.costUsd, entry.knownUsd, used)}</span>
    <span class="session-fact session-when" title=${entry.createdAt}>${ago(entry.createdAt, now.value)}</span>
    <span class="session-act">
      ${compare
        ? html`<a class="button small" href=${compare} aria-label=${`Compare with ${id}`}>with this</a>`
        : html`<button type="button" class="button small ghost" aria-pressed=${isMarked} aria-label=${`Compare ${id}`} onClick=${() => onMark(id)}>${isMarked ? 'choose another' : 'compare'}</button>`}
    </span>
  </li>`;
}

export function Sessions() {
  const [mark, setMark] = useState(null);
  const [limit, setLimit] = useState(100);
  const words = route.value.query.q ?? '';
  const all = sortedSessions.value;
  const found = useMemo(() => {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    return all.filter((entry) => wanted.every((word) => `${entry.flow} ${entry.sessionId} ${entry.state}`.toLowerCase().includes(word)));
  }, [all, words]);
  if (!sessions.value) return listError.value ? html`<${Failure} error=${listError.value} retry=${loadLists} head=${true} />` : html`<${Loading} what="the sessions" />`;
  const running = all.filter((entry) => entry.state === 'running').length;
  const waiting = all.filter((entry) => entry.questions > 0).length;
  // The counts and the filter are of those that are read.
  const total = plural(all.length, 'session') + (hasOlder.value ? ' (older ones are not read yet)' : '');
  return html`<section class="page">
    <div class="page-head">
      <h1>Sessions</h1>
      <p class="faint">${[waiting && `${waiting} for you`, running && `${running} running`, total].filter(Boolean).join(' · ')}</p>
      <span class="grow"></span>
      <input type="search" class="filter" data-filter value=${words} placeholder="Filter  /" aria-label="Filter sessions by flow, id or state"
        onInput=${(event) => setQuery({ q: event.target.value })} />
      <a class="button main" href=${href(['flows'])}>Start a flow</a>
    </div>
    ${mark && html`<p class="hint">Choose the session to compare <span class="mono">${mark}</span> with. <button type="button" class="link" onClick=${() => setMark(null)}>Cancel</button></p>`}
    ${all.length === 0
      ? html`<${Empty} title="No session yet"><p>Start one from <a href=${href(['flows'])}>a flow</a>, or in a shell: <code>inspan run flow.yaml</code></p><//>`
      : found.length === 0
        ? html`<${Empty} title="No session matches"><p>${total}${hasOlder.value ? '' : ' in all'}.</p><//>`
        : html`<ul class="sessions">${found.slice(0, limit).map((entry) => html`<${Row} key=${entry.sessionId} entry=${entry} mark=${mark} onMark=${setMark} />`)}</ul>`}
    ${found.length > limit && html`<p class="more"><button type="button" class="button" onClick=${() => setLimit(limit + 200)}>Show ${Math.min(200, found.length - limit)} more of ${found.length}</button></p>`}
    ${hasOlder.value && found.length <= limit && html`<p class="more"><${Button} onPress=${loadOlder}>Read older sessions<//></p>`}
  </section>`;
}
