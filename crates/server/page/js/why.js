// Why a node, or the session, is where it is: each sentence leads to its event.

import { html } from './dom.js';
import { clockMs, text } from './format.js';
import { AtEnd, Empty, Failure, Loading } from './parts.js';
import { href, route } from './route.js';
import { base, moment, useResource } from './session.js';

/** Code in a sentence is between backticks. @param {string} sentence */
const words = (sentence) => sentence.split('`').map((part, at) => (at % 2 ? html`<code>${part}</code>` : part));

/** @param {{ one: Loose, id: string, isFirst?: boolean }} _ */
function Statement({ one, id, isFirst }) {
  return html`<li class=${isFirst ? 'standing' : ''}>
    <a class="item-seq num" href=${href(['s', id, 'log'], { ...route.value.query, event: one.seq, types: undefined, of: undefined, q: undefined, tab: undefined })} title=${`event ${one.seq}, ${clockMs(one.at)}`}>${one.seq}</a>
    <div><p>${words(one.text)}</p>
      ${one.values && Object.keys(one.values).length > 0 && html`<dl class="values mono">${Object.entries(one.values).map(([name, value]) => html`<div><dt>${name}</dt><dd>${text(value)}</dd></div>`)}</dl>`}</div>
  </li>`;
}

/** @param {{ session: Session, node: string }} _ */
export function Why({ session, node }) {
  const { at, tick } = moment(session);
  const { data, error, reload } = useResource(`${base(session.id)}/why`, { node, at }, tick);
  if (error && !data) return html`<${Failure} error=${error} retry=${reload} />`;
  if (!data) return html`<${Loading} what="the reasons" />`;
  if (!data.standing && !data.because?.length) return html`<${Empty} title="Nothing to explain yet" />`;
  return html`<div class="why">
    <${AtEnd} session=${session} />
    ${node ? html`<h2 class="minor">Why <span class="mono">${node}</span> is where it is</h2>` : html`<h2 class="minor">Why the session is where it is</h2>`}
    <ol>
      ${data.standing && html`<${Statement} one=${data.standing} id=${session.id} isFirst=${true} />`}
      ${(data.because ?? []).map((/** @type {Loose} */ one) => html`<${Statement} key=${one.seq + one.kind} one=${one} id=${session.id} />`)}
    </ol>
  </div>`;
}
