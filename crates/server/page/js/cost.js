// What a session has spent, by node and by model, beside its budget and what earlier sessions lead to expect.

import { html } from './dom.js';
import { count, money, plural } from './format.js';
import { AtEnd, Failure, Loading } from './parts.js';
import { base, choose, moment, useResource } from './session.js';

/** An estimate: a number, or what is expected with its range. @param {number | Api.Estimate | null} [value] */
function estimate(value) {
  if (value === undefined || value === null || typeof value === 'number') return money(value);
  const { low, expected, high } = value;
  return `${money(expected)}${high !== undefined && low !== high ? ` (${money(low)} to ${money(high)})` : ''}`;
}

/** @param {{ session: Session }} _ */
export function Cost({ session }) {
  const { at, tick } = moment(session);
  const { data, error, reload } = /** @type {Resource<Api.Cost>} */ (useResource(`${base(session.id)}/cost`, { at }, tick));
  if (error && !data) return html`<${Failure} error=${error} retry=${reload} />`;
  if (!data) return html`<${Loading} what="the cost" />`;
  const limit = data.budget?.usd ?? undefined;
  // Nothing that is known is not the least that was spent.
  const spent = data.spentUsd ?? (data.knownUsd || undefined);
  const most = Math.max(...data.byNode.map((one) => Math.max(one.costUsd ?? 0, one.forecastUsd ?? 0)), 1e-9);
  const mostTokens = Math.max(...data.byNode.map((one) => one.tokens), 1);
  const expected = estimate(data.forecast?.costUsd);
  const hasCost = data.byNode.some((one) => one.costUsd);
  return html`<div class="cost">
    <${AtEnd} session=${session} />
    <dl class="big">
      <div><dt>spent</dt><dd>${spent === undefined ? 'unknown' : money(spent)}${data.spentUsd === undefined && spent !== undefined ? html`<small>at least: some price is unknown</small>` : ''}</dd></div>
      <div><dt>tokens</dt><dd>${count(data.tokens) || '0'}</dd></div>
      ${(data.reservedUsd ?? 0) > 0 && html`<div><dt>laid aside for what runs</dt><dd>${money(data.reservedUsd)}</dd></div>`}
      ${limit !== undefined && html`<div><dt>budget</dt><dd>${money(limit)}</dd></div>`}
      ${expected && html`<div><dt>expected</dt><dd>${expected}${data.forecast?.sessions ? html`<small>from ${plural(data.forecast.sessions, 'session')}</small>` : ''}</dd></div>`}
      <div><dt>read from the cache</dt><dd>${Math.round((data.cacheShare ?? 0) * 100)}%</dd></div>
    </dl>
    ${limit !== undefined && spent !== undefined && html`<div class="meter" role="img" aria-label=${`${money(spent)} of ${money(limit)} spent`}><i style=${{ width: `${Math.min(100, (spent / limit) * 100)}%` }}></i><i class="reserved" style=${{ width: `${Math.min(100, ((data.reservedUsd ?? 0) / limit) * 100)}%` }}></i></div>`}
    <h2 class="minor">By node</h2>
    <table class="table"><thead><tr><th scope="col">node</th><th scope="col"><span class="sr">share</span></th><th scope="col" class="num">cost</th><th scope="col" class="num">expected</th><th scope="col" class="num">tokens</th></tr></thead>
      <tbody>${data.byNode.slice(0, 500).map((one) => html`<tr key=${one.path}>
        <th scope="row"><button type="button" class="link" onClick=${() => choose(one.path)}>${one.path}</button></th>
        <td class="share"><i style=${{ width: `${(hasCost ? (one.costUsd ?? 0) / most : one.tokens / mostTokens) * 100}%` }}></i></td>
        <td class="num">${one.costUsd === undefined ? (one.tokens ? 'unknown' : '') : money(one.costUsd)}</td><td class="num faint">${estimate(one.forecastUsd)}</td><td class="num">${count(one.tokens)}</td></tr>`)}</tbody></table>
    ${data.byNode.length === 0 && html`<p class="faint">No agent has run.</p>`}
    ${data.byModel?.length > 0 && html`<h2 class="minor">By model</h2>
      <table class="table"><thead><tr><th scope="col">model</th><th scope="col" class="num">cost</th><th scope="col" class="num">tokens</th><th scope="col" class="num">from the cache</th></tr></thead>
      <tbody>${data.byModel.map((one) => html`<tr><th scope="row" class="mono">${one.model ?? one.provider}${one.model && one.provider ? html` <span class="faint">${one.provider}</span>` : ''}</th><td class="num">${one.costUsd === undefined ? 'unknown' : money(one.costUsd)}</td><td class="num">${count(one.tokens)}</td><td class="num">${count(one.usage?.cacheReadTokens || null)}</td></tr>`)}</tbody></table>`}
  </div>`;
}
