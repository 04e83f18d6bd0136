// A question to a person: its choices, a free text, or a form; and a permission that an agent asks for.

import { cls, html, useLayoutEffect, useRef, useState } from './dom.js';
import { sender } from './commands.js';
import { Form, drafts, empty, useDraft } from './form.js';
import { isLate, now, runs, sessions } from './lists.js';
import { Folded, note } from './parts.js';
import { connection } from './socket.js';
import { file } from './source.js';
import { Markdown } from './markdown.js';
import { text, until } from './format.js';

/** A permission's tool and arguments. @param {{ question: Loose }} _ */
function Permission({ question }) {
  const { title = question.prompt, lines = [] } = question.permission ?? {};
  return html`<div class="permission">
    <p>An agent asks for permission: <b class="mono">${title}</b></p>
    ${lines.length > 0 && html`<${Folded} value=${lines.join('\n')} label="Arguments" lines=${40} />`}
  </div>`;
}

/** Around questions: when one of them has come or gone, a click counts only after a moment. It was meant for what was there. @param {{ ids: string, children?: any }} _ */
export function SteadyQuestions({ ids, children }) {
  const changed = useRef(0);
  useLayoutEffect(() => {
    changed.current = performance.now();
  }, [ids]);
  return html`<div class="steady" onClickCapture=${(/** @type {MouseEvent} */ event) => {
    // A click by the keyboard is of the element that has the focus.
    if (event.detail && performance.now() - changed.current < 500) {
      event.preventDefault();
      event.stopPropagation();
    }
  }}>${children}</div>`;
}

/** @param {{ question: Loose }} _ */
export function Question({ question }) {
  const kept = drafts(`${question.sessionId} ${question.promptId}`);
  const [draft, setDraft] = useDraft(kept, ' ', () => '');
  const [value, setValue] = useDraft(kept, '', () => (question.schema ? empty(question.schema) : null));
  const [state, setState] = useState({ busy: '', error: '', done: false });
  const [send] = useState(() => sender(question.sessionId));
  const isPermission = question.kind === 'permission';
  const choices = question.choices ?? [];
  const takesText = question.allowText ?? choices.length === 0;
  /** @param {Loose} command @param {string} name */
  const answer = async (command, name) => {
    setState({ busy: name, error: '', done: false });
    try {
      await send({ prompt: question.promptId, ...command });
      setState({ busy: '', error: '', done: true });
      kept.clear();
      note('Answered');
    } catch (error) {
      const message = error.code === 'alreadyAnswered' ? 'This question is already answered.' : error.message;
      setState({ busy: '', error: message, done: false });
      // The question goes when somebody else has answered it, and what is said beside it too.
      if (error.status === 409) note(message, 'bad');
    }
  };
  /** @param {string} content @param {string} choice */
  const reply = (content, choice) =>
    answer({ type: 'reply', content, ...(choice && { choice }) }, choice || 'text');
  const isSent = !!state.busy || state.done || !!file;
  const isStale = connection.value === 'stale';
  // By this clock. Whether an answer still counts is decided where the session runs; where it does not run, it is over.
  const late = isLate(question);
  const entry = late && sessions.value?.find((one) => one.sessionId === question.sessionId);
  const off = isSent || isStale || (entry && !runs(entry));
  return html`<div class=${cls('asked', !isStale && 'question')} role="group" tabindex="-1" aria-label="A question for you">
    <div class="question-text"><${Markdown} text=${question.prompt} /></div>
    ${isPermission && html`<${Permission} question=${question} />`}
    ${!isPermission && question.detail !== undefined && html`<${Folded} value=${text(question.detail)} label="More about it" />`}
    ${question.deadline && html`<p class="hint">${late
      ? html`By the clock of this browser its time is up. Then no answer counts, and resuming the session ${question.default === undefined ? 'lets it fail' : html`takes <b>${question.default}</b>`}.`
      : html`${question.default === undefined ? 'Fails' : html`Answered with <b>${question.default}</b>`} ${until(question.deadline, now.value)} if nobody answers.`}</p>`}
    ${isPermission
      ? html`<div class="choices">
          <button type="button" class="button main" disabled=${off} onClick=${() => answer({ type: 'approve' }, 'approve')}>Allow once</button>
          <button type="button" class="button" disabled=${off} title="For the rest of the agent's run, without asking again" onClick=${() => answer({ type: 'approve', always: true }, 'always')}>Allow always</button>
          <button type="button" class="button" disabled=${off} onClick=${() => answer({ type: 'reject', ...(draft.trim() && { reason: draft.trim() }) }, 'reject')}>Deny</button>
        </div>
        <label class="field"><span>Reason for the agent, if you deny</span>
          <input type="text" value=${draft} disabled=${isSent} onInput=${(event) => setDraft(event.target.value)} /></label>`
      : question.schema
        ? html`<form onSubmit=${(event) => {
            event.preventDefault();
            if (!off) reply(JSON.stringify(value), '');
          }}>
            <${Form} schema=${question.schema} kept=${kept} value=${value} onChange=${setValue} />
            <div class="choices"><button type="submit" class="button main" disabled=${off}>Answer</button></div>
          </form>`
        : html`
          ${choices.length > 0 && html`<div class="choices">
            ${choices.map((/** @type {string} */ choice) => html`<button type="button" class=${cls('button', 'main', state.busy === choice && 'busy')} disabled=${off} onClick=${() => reply(takesText ? draft : '', choice)}>${choice}</button>`)}
          </div>`}
          ${takesText && html`<form class="say" onSubmit=${(event) => {
            event.preventDefault();
            if (!off && draft.trim()) reply(draft, '');
          }}>
            <label class="field"><span>${choices.length ? 'Or answer in your own words' : 'Your answer'}</span>
              <textarea rows="2" value=${draft} disabled=${isSent}
                onInput=${(event) => setDraft(event.target.value)}
                onKeyDown=${(event) => event.key === 'Enter' && (event.ctrlKey || event.metaKey) && !off && draft.trim() && reply(draft, '')}></textarea></label>
            <button type="submit" class=${cls('button', !choices.length && 'main')} disabled=${off || !draft.trim()}>Send answer</button>
          </form>`}`}
    ${isStale && html`<p class="hint">Not connected. It can be answered when the server answers again.</p>`}
    ${state.error && html`<p class="error" role="alert">${state.error}</p>`}
    ${state.done && html`<p class="hint" role="status">Answered; the session resumes.</p>`}
  </div>`;
}
