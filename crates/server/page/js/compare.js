// Two sessions side by side: how they ended, what they cost, and what each node did in both.

import { cls, html } from './dom.js';
import { count, duration, money, spent, text } from './format.js';
import { DiffLines, Empty, Failure, Folded, Loading, NodeSign, SessionSign } from './parts.js';
import { href, route } from './route.js';
import { base, useResource } from './session.js';

/** @param {{ side: Loose }} _ */
function Side({ side }) {
  if (!side) return html`<td class="faint">did not run</td>`;
  const facts = [side.attempts > 1 && `${side.attempts} attempts`, duration(side.durationMs), money(side.costUsd)].filter(Boolean).join(' · ');
  return html`<td><${NodeSign} status=${side.status} /> <span class="num faint">${facts}</span></td>`;
}

/** How a node ended; work that is reused was complete. @param {Loose} side */
const end = (side) => (side?.status === 'reused' ? 'complete' : side?.status);

/** @param {Loose} node */
const differs = ({ outputDifference, sides = [] }) => !!outputDifference || end(sides[0]) !== end(sides[1]);

export function Compare() {
  const { a = '', b = '' } = route.value.query;
  if (!a || !b) return html`<${Empty} head=${true} title="Choose two sessions"><p><a href=${href([])}>In the list</a>, choose “compare” on one and then the other.</p><//>`;
  return html`<${Two} a=${a} b=${b} />`;
}

/** @param {{ a: string, b: string }} _ */
function Two({ a, b }) {
  const { data, error, reload } = useResource('/compare', { a, b });
  const [one, other] = [useResource(base(a), {}).data, useResource(base(b), {}).data];
  if (error) return html`<${Failure} error=${error} retry=${reload} head=${true} />`;
  if (!data) return html`<${Loading} what="the two sessions" />`;
  const [left, right] = data.sessions;
  /** @type {[string, (one: any) => any][]} */
  const rows = [
    ['ended', (one) => html`<${SessionSign} state=${one.outcome ?? one.state} />`],
    ['time', (one) => duration(one.durationMs)],
    ['cost', (one) => spent(one.costUsd, one.knownUsd, 1)],
    ['tokens', (one) => count(one.tokens)],
    ['nodes run', (one) => String(one.path?.length ?? '')],
  ];
  return html`<section class="page compare">
    <div class="page-head"><h1>Compare</h1></div>
    <div class="table-scroll" tabindex="0" role="region" aria-label="The two sessions"><table class="table">
      <thead><tr><th scope="col"><span class="sr">what</span></th>${[left, right].map((one) => html`<th scope="col"><a href=${href(['s', one.sessionId, 'graph'])}>${one.flow}</a> <span class="mono faint">${one.sessionId}</span></th>`)}</tr></thead>
      <tbody>
        ${rows.map(([name, of]) => html`<tr><th scope="row">${name}</th><td>${of(left)}</td><td>${of(right)}</td></tr>`)}
        ${['input', 'output'].map((name) => html`<tr><th scope="row">${name}</th>${[one, other].map((state) => html`<td>${state?.[name] !== undefined && html`<${Folded} value=${text(state[name])} label=${name} />`}</td>`)}</tr>`)}
        ${data.nodes.map((/** @type {Loose} */ node) => html`<tr class=${cls(differs(node) && 'differs')}><th scope="row" class="mono">${differs(node) && html`<span class="tone-warning" title="differs">≠<span class="sr"> differs</span></span> `}${node.path}</th><${Side} side=${node.sides[0]} /><${Side} side=${node.sides[1]} /></tr>
          ${node.outputDifference && html`<tr class="difference"><td colspan="3"><pre class="code" tabindex="0" aria-label=${`How the outputs of ${node.path} differ`}><${DiffLines} text=${node.outputDifference} head=${2} /></pre></td></tr>`}`)}
      </tbody>
    </table></div>
    ${data.pathDifference && html`<h2>Order of the nodes</h2><pre class="code" tabindex="0">${data.pathDifference}</pre>`}
  </section>`;
}
