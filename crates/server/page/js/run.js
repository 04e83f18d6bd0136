// A run: its head, the view that is chosen, the chosen node beside it, and the scrubber under both.

import { cls, html, useEffect } from './dom.js';
import { Cost } from './cost.js';
import { GraphView, shapesOf } from './graph.js';
import { Log } from './log.js';
import { NodePane } from './node.js';
import { Scrubber } from './scrubber.js';
import { Timeline } from './timeline.js';
import { Why } from './why.js';
import { VIEWS } from './keys.js';
import { hasEnded, isLate, runs, title, took, waitsFor } from './lists.js';
import { count, duration, plural, spent } from './format.js';
import { Button, Contained, Failure, Loading, SessionSign } from './parts.js';
import { href, route } from './route.js';
import { base, chosen, isLive, isPast, sessionOf, shownAt } from './session.js';
import { file } from './source.js';
import * as commands from './commands.js';

/** The facts of the run in a line. @param {{ session: Session, state: State }} _ */
function Facts({ session: shown, state }) {
  const { session, totals } = state;
  const ms = isPast(shown) ? state.durationMs : took(session);
  const nodes = totals?.nodes ?? {};
  const all = Object.values(nodes).reduce((sum, n) => sum + n, 0);
  const done = (nodes.complete ?? 0) + (nodes.reused ?? 0) + (nodes.skipped ?? 0);
  /** @type {any[]} */
  const facts = [
    ms !== undefined && ['time', duration(ms)],
    all > 0 && ['nodes', `${done} of ${all}`],
    nodes.failed > 0 && ['failed', String(nodes.failed), 'tone-bad'],
    all > 0 && ['cost', spent(totals.costUsd, totals.knownUsd, totals.tokens)],
    totals?.tokens > 0 && ['tokens', count(totals.tokens)],
  ].filter((fact) => fact && fact[1]);
  return html`<dl class="facts">${facts.map(([name, value, tone]) => html`<div><dt>${name}</dt><dd class=${cls('num', tone)}>${value}</dd></div>`)}</dl>`;
}

/** @param {{ session: Session, state: State }} _ */
function Acts({ session, state }) {
  const { id } = session;
  const entry = state.session;
  const flow = entry.flow;
  if (!isLive(session)) {
    return html`<div class="acts">
      ${session.at.value && !file && html`<${Button} onPress=${() => commands.fork(id, session.at.value ?? 0, state.input)}>Fork from event ${session.at.value}<//>`}
    </div>`;
  }
  const isOver = hasEnded(entry.state);
  const isRunning = runs(entry);
  // An answer resumes a session that waits, and nothing else runs in it then. What is paused or interrupted may have more to do.
  const asks = state.prompts?.some((/** @type {Loose} */ one) => !isLate(one));
  const canResume = !isRunning && !(asks && entry.state === 'waiting') && state.next?.some((/** @type {Loose} */ one) => one.command.startsWith('inspan resume '));
  return html`<div class="acts">
    ${isRunning && html`<${Button} onPress=${() => commands.steer(id, '')}>Send…<//><${Button} onPress=${() => commands.pause(id, flow)}>Pause<//>`}
    ${canResume && html`<${Button} kind=${!asks && 'main'} onPress=${() => commands.resume(id, flow, entry.limitToRaise)}>Resume<//>`}
    ${!isOver && html`<${Button} kind="danger-quiet" onPress=${() => commands.stop(id, flow)}>Stop<//>`}
    <a class="button" href=${`/api/v1${base(id)}/report`} target="_blank" rel="noopener">Report</a>
  </div>`;
}

/** @param {{ session: Session, state: State }} _ */
function RunHead({ session, state }) {
  const entry = state.session;
  const parent = state.parent?.session;
  return html`<header class="run-head">
    <div class="run-title">
      <${SessionSign} state=${entry.state} />
      <h1>${entry.flow}${entry.isReplay && ' (replay)'}</h1>
      <span class="mono faint run-id">${session.id}</span>
      ${!entry.questions && html`<span class="faint">${waitsFor(entry)}</span>`}
      ${parent && html`<a class="mono run-parent" href=${href(['s', parent, 'graph'])}>${state.parent.kind === 'resume' ? 'continues' : 'forked from'} ${parent}</a>`}
      ${entry.continuedBy && html`<a class="mono" href=${href(['s', entry.continuedBy, 'graph'])}>continued by ${entry.continuedBy}</a>`}
    </div>
    <${Facts} session=${session} state=${state} />
    <span class="grow"></span>
    <${Acts} session=${session} state=${state} />
  </header>`;
}

/** @param {{ id: string, view: string }} _ */
function Views({ id, view }) {
  const { q, ...query } = route.value.query;
  return html`<nav class="tabs" aria-label="Views of the run">
    ${VIEWS.map((one) => html`<a href=${href(['s', id, one.view], query)} aria-current=${view === one.view ? 'page' : undefined}>${one.name}<kbd aria-hidden="true">${one.key}</kbd></a>`)}
  </nav>`;
}

/** @param {{ id: string, view: string }} _ */
export function Run({ id, view }) {
  const session = sessionOf(id);
  const state = session.shown.value;
  const flow = state?.session.flow;
  const graph = session.graph.value;
  // It comes before the state, mostly, and is prepared meanwhile.
  if (graph && !graph.failure) shapesOf(graph);
  useEffect(() => {
    title.value = flow ? `${flow} · Inspan` : 'Inspan';
  }, [flow]);
  if (!state) return session.error.value ? html`<${Failure} error=${session.error.value} retry=${session.reload} head=${true} />` : html`<${Loading} what="the session" />`;
  return html`<div class=${cls('run', chosen.value && 'has-node', session.at.value && 'past', `at-${view}`, !chosen.value && view !== 'graph' && 'alone')}>
    <${RunHead} session=${session} state=${state} />
    ${session.error.value && html`<div class="bar stale-bar" role="alert"><strong>Not followed any more.</strong> ${session.error.value.message} <${Button} onPress=${session.reload}>Try again<//></div>`}
    <${Views} id=${id} view=${view} />
    <div class="run-body">
      <section class="run-main" aria-label=${VIEWS.find((one) => one.view === view)?.name ?? 'View'}>
        <${Contained} key=${view}>${view === 'timeline'
          ? html`<${Timeline} session=${session} />`
          : view === 'log'
            ? html`<${Log} session=${session} />`
            : view === 'cost'
              ? html`<${Cost} session=${session} />`
              : view === 'why'
                ? html`<${Why} session=${session} node=${chosen.value} />`
                : html`<${GraphView} session=${session} state=${state} />`}<//>
      </section>
      ${(chosen.value || view === 'graph') && html`<${NodePane} session=${session} state=${state} />`}
    </div>
    <${Scrubber} session=${session} state=${state} />
    <p class="sr" role="status">${session.at.value ? `The session as it was at event ${shownAt(session, state)}` : plural(state.prompts?.length ?? 0, 'open question')}</p>
  </div>`;
}
