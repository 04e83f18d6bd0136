// All open questions, answered in place.

import { html, useEffect, useState } from './dom.js';
import { inbox, title } from './lists.js';
import { Contained, Empty } from './parts.js';
import { href } from './route.js';
import { Question, SteadyQuestions } from './question.js';

export function Inbox() {
  useEffect(() => {
    title.value = 'Inbox · Inspan';
  }, []);
  // A new question is the last one until the view is opened again, so that none moves under the pointer.
  const [places] = useState(() => new Map());
  const id = (/** @type {Loose} */ question) => question.sessionId + question.promptId;
  for (const question of inbox.value) if (!places.has(id(question))) places.set(id(question), places.size);
  const open = [...inbox.value].sort((a, b) => places.get(id(a)) - places.get(id(b)));
  return html`<section class="page narrow">
    <div class="page-head"><h1>Inbox</h1></div>
    ${open.length === 0 && html`<${Empty} title="Nothing waits for you"><p>A question of a flow or of an agent appears here as soon as it is asked.</p><//>`}
    <${SteadyQuestions} ids=${open.map(id).join()}>${open.map((question) => html`<article class="card" key=${id(question)}>
      <p class="card-from">
        <a href=${href(['s', question.sessionId, 'graph'], { node: question.task })}>${question.flow}</a>
        ${question.task && html` <span aria-hidden="true">›</span> <span class="mono">${question.task}</span>`}
        <span class="mono faint">${question.sessionId}</span>
      </p>
      <${Contained}><${Question} question=${question} /><//>
    </article>`)}<//>
  </section>`;
}
