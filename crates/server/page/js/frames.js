// The frames of a node, opened on demand: the items of a foreach, the passes of a loop, the run of a subflow.

import { cls, html, useState } from './dom.js';
import { duration, money } from './format.js';
import { AtEnd, Empty, Failure, Loading, NodeSign } from './parts.js';
import { base, moment, useResource } from './session.js';
import { route, setQuery } from './route.js';

const PAGE = 100;

/** @param {{ session: Session, path: string }} _ */
export function Frames({ session, path }) {
  const [from, setFrom] = useState(0);
  const [status, setStatus] = useState('');
  const { at, tick } = moment(session);
  const { data, isLoading, error, reload } = /** @type {Resource<Api.FramePage & { held?: number }>} */ (useResource(`${base(session.id)}/frames`, { node: path, from, limit: PAGE, status, at }, tick));
  const state = session.shown.value?.nodes[path]?.frames;
  if (error && !data) return html`<${Failure} error=${error} retry=${reload} />`;
  if (!data) return html`<${Loading} what="the frames" />`;
  // A file has only the first of very many.
  const held = data.held ?? data.total;
  return html`<div class="frames-list">
    <${AtEnd} session=${session} />
    <div class="tools">
      ${state?.total > 0 && html`<div class="progress" role="img" aria-label=${`${state.succeeded} succeeded, ${state.failed} failed, of ${state.total}`}>
        <i class="good" style=${{ flexGrow: state.succeeded }}></i><i class="bad" style=${{ flexGrow: state.failed }}></i><i style=${{ flexGrow: Math.max(0, state.total - state.succeeded - state.failed) }}></i>
      </div><span class="num faint">${state.succeeded + state.failed} of ${state.total}</span>`}
      <span class="grow"></span>
      <label class="inline"><span>Show</span><select value=${status} onChange=${(event) => {
        setFrom(0);
        setStatus(event.target.value);
      }}>
        <option value="">all</option><option value="failed">failed</option><option value="running">running</option><option value="waiting">waiting</option><option value="complete">complete</option>
      </select></label>
    </div>
    ${data.frames.length === 0 && html`<${Empty} title=${isLoading ? 'Reading…' : status ? `None is ${status}` : 'None has begun'} />`}
    <ul class="frames">${data.frames.map((frame) => html`<${Frame} key=${frame.path} session=${session} frame=${frame} />`)}</ul>
    ${data.total > PAGE && html`<p class="more">
      <button type="button" class="button small" disabled=${from === 0} onClick=${() => setFrom(Math.max(0, from - PAGE))}>Earlier</button>
      <span class="num">${from + 1}–${Math.min(held, from + PAGE)} of ${data.total}</span>${held < data.total && from + PAGE >= held ? html` <span class="faint">The file has the first ${held}.</span>` : ''}
      <button type="button" class="button small" disabled=${from + PAGE >= held} onClick=${() => setFrom(from + PAGE)}>Later</button></p>`}
  </div>`;
}

/** @param {{ session: Session, frame: Api.ShownFrame }} _ */
function Frame({ session, frame }) {
  const isFirst = ['failed', 'running', 'waiting'].includes(frame.status);
  const node = route.value.query.node ?? '';
  return html`<li class="frame"><details open=${isFirst} onToggle=${(event) => event.target.open && session.openFrame(frame.path)}>
    <summary><${NodeSign} status=${frame.status} bare=${true} /> <b>${frame.name ?? frame.path}</b> <span class="mono faint">${frame.path}</span>
      <span class="grow"></span><span class="num faint">${[frame.of ? `${frame.done} of ${frame.of}` : '', duration(frame.durationMs), money(frame.costUsd)].filter(Boolean).join(' · ')}</span></summary>
    ${frame.error && html`<p class="error">${frame.error.message ?? frame.error}</p>`}
    <ul>${Object.entries(frame.nodes ?? {}).map(([path, one]) => html`<li><button type="button" class=${cls('node-row', path === node && 'chosen')} onClick=${() => setQuery({ node: path, tab: undefined })}>
      <${NodeSign} status=${one.status} bare=${true} /><span class="node-id">${one.id ?? path.split('/').at(-1)}</span><span class="faint node-type">${one.type ?? ''}</span><span class="grow"></span><span class="num faint">${duration(one.durationMs)}</span>
    </button></li>`)}</ul>
  </details></li>`;
}
