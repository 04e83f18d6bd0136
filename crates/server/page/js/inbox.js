// All open questions, answered in place.

import { html, useEffect } from './dom.js';
import { inbox, title } from './lists.js';
import { Empty } from './parts.js';
import { href } from './route.js';
import { Question } from './question.js';

export function Inbox() {
  useEffect(() => {
    title.value = 'Inbox · Inspan';
  }, []);
  const open = inbox.value;
  return html`<section class="page narrow">
    <div class="page-head"><h1>Inbox</h1></div>
    ${open.length === 0 && html`<${Empty} title="Nothing waits for you"><p>A question of a flow or of an agent appears here as soon as it is asked.</p><//>`}
    ${open.map((question) => html`<article class="card" key=${question.sessionId + question.promptId}>
      <p class="card-from">
        <a href=${href(['s', question.sessionId, 'graph'], { node: question.task })}>${question.flow}</a>
        ${question.task && html` <span aria-hidden="true">›</span> <span class="mono">${question.task}</span>`}
        <span class="mono faint">${question.sessionId}</span>
      </p>
      <${Question} question=${question} />
    </article>`)}
  </section>`;
}
