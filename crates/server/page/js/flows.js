// Flows of the registered folders, and the form that starts one.

import { html, useEffect, useState } from './dom.js';
import { duration, money, plural } from './format.js';
import { Form, drafts, empty, useDraft } from './form.js';
import { title } from './lists.js';
import { Empty, Failure, Loading, SessionSign, note } from './parts.js';
import { go, href, route, setQuery } from './route.js';
import { useResource } from './session.js';
import { poster } from './source.js';

export function Flows() {
  useEffect(() => {
    title.value = 'Flows · Inspan';
  }, []);
  const { data, isLoading, error, reload } = useResource('/flows', {});
  const words = (route.value.query.q ?? '').toLowerCase();
  if (error) return html`<${Failure} error=${error} retry=${reload} head=${true} />`;
  if (isLoading && !data) return html`<${Loading} what="the flows" />`;
  const found = data.filter((/** @type {Loose} */ flow) => `${flow.name} ${flow.file} ${flow.description ?? ''}`.toLowerCase().includes(words));
  return html`<section class="page">
    <div class="page-head">
      <h1>Flows</h1><span class="grow"></span>
      <input type="search" class="filter" data-filter value=${words} placeholder="Filter  /" aria-label="Filter flows" onInput=${(event) => setQuery({ q: event.target.value })} />
    </div>
    ${data.length === 0 && html`<${Empty} title="No flow is registered"><p>The server offers the flows of the folders it was started with: <code>inspan serve --flows DIR</code></p><//>`}
    <ul class="flows">
      ${found.map((/** @type {Loose} */ flow) => html`<li key=${flow.id}><a class="flow" href=${href(['flows', flow.id])}>
        <span class="flow-name">${flow.name}</span>
        ${flow.description && html`<span class="flow-text">${flow.description}</span>`}
        ${flow.runs === false && html`<span class="tone-bad">✘ cannot run: ${plural(flow.problems?.length ?? 1, 'problem')}</span>`}
        <span class="mono faint flow-file">${flow.file}</span>
      </a></li>`)}
    </ul>
  </section>`;
}

/** @param {{ id: string }} _ */
export function Flow({ id }) {
  const { data: flow, isLoading, error, reload } = useResource(`/flows/${encodeURIComponent(id)}`, {});
  useEffect(() => {
    title.value = `${flow?.name ?? 'Flow'} · Inspan`;
  }, [flow]);
  if (error) return html`<${Failure} error=${error} retry=${reload} head=${true} />`;
  if (isLoading || !flow) return html`<${Loading} what="the flow" />`;
  return html`<section class="page narrow">
    <div class="page-head"><h1>${flow.name}</h1></div>
    ${flow.description && html`<p class="lead">${flow.description}</p>`}
    <p class="mono faint">${flow.file}</p>
    ${flow.runs === false
      ? html`<div class="card"><h2>It cannot run</h2><ul class="problems">${(flow.problems ?? []).map((/** @type {Loose} */ problem) => html`<li class="mono">${[problem.line && `line ${problem.line}`, problem.message].filter(Boolean).join(': ')}</li>`)}</ul></div>`
      : html`<${Start} flow=${flow} />`}
    ${flow.history?.length > 0 && html`<h2>Earlier sessions</h2>
      <ul class="sessions">${flow.history.map((/** @type {Loose} */ one) => html`<li class="session">
        <a class="session-main" href=${href(['s', one.sessionId, 'graph'])}><span class="session-state"><${SessionSign} state=${one.state} /></span><span class="session-id mono">${one.sessionId}</span></a>
        <span class="session-fact num">${duration(one.durationMs)}</span><span class="session-fact num">${money(one.costUsd)}</span>
      </li>`)}</ul>`}
  </section>`;
}

/** @param {{ flow: Loose }} _ */
function Start({ flow }) {
  const kept = drafts(flow.id);
  const [value, setValue] = useDraft(kept, '', () => empty(flow.input ?? {}));
  const [budget, setBudget] = useDraft(kept, ' ', () => '');
  const [state, setState] = useState({ busy: false, error: '' });
  const [post] = useState(poster);
  const start = async (/** @type {any} */ event) => {
    event.preventDefault();
    setState({ busy: true, error: '' });
    try {
      const options = budget ? { budget: { usd: Number(budget) } } : {};
      const { sessionId } = await post('/sessions', { flow: flow.id, input: value ?? {}, options });
      kept.clear();
      note('Started');
      go(href(['s', sessionId, 'graph']));
    } catch (error) {
      const { message, hint } = (error);
      setState({ busy: false, error: [message, hint].filter(Boolean).join(' ') });
    }
  };
  return html`<form class="card start" onSubmit=${start}>
    <h2>Start it</h2>
    <${Form} schema=${flow.input ?? {}} kept=${kept} value=${value} onChange=${setValue} />
    <label class="field short"><span>Budget in US dollars</span>
      <input type="number" min="0" step="any" value=${budget} placeholder="no limit" onInput=${(event) => setBudget(event.target.value)} />
      <small>The session pauses when it is used up.</small></label>
    ${state.error && html`<p class="error" role="alert">${state.error}</p>`}
    <div class="choices"><button type="submit" class="button main" disabled=${state.busy}>Start ${flow.name}</button></div>
  </form>`;
}
