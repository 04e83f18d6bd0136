// What the page can ask of a session. Each asks once and says what it will do.

import { html } from './dom.js';
import { ask, note } from './parts.js';
import { base } from './session.js';
import { key, post } from './source.js';
import { go, href } from './route.js';

export async function send(id, command, once) {
  return post(`${base(id)}/commands`, { command, key: once ?? key() });
}

export function pause(id, flow) {
  const once = key();
  ask({
    title: `Pause ${flow}?`,
    what: html`<p>What runs now is cancelled and starts again after the pause; an agent resumes its own conversation. What is complete stays.</p>`,
    act: 'Pause',
    run: async () => {
      await send(id, { type: 'pause' }, once);
      note('The session pauses');
    },
  });
}

export function resume(id, flow) {
  const once = key();
  ask({
    title: `Resume ${flow}?`,
    what: html`<p>What is unfinished runs again; what is complete is neither run nor charged again.</p>`,
    act: 'Resume',
    run: async () => {
      await send(id, { type: 'resume' }, once);
      note('The session resumes');
    },
  });
}

export function stop(id, flow) {
  const once = key();
  ask({
    title: `Stop ${flow} for good?`,
    what: html`<p>What runs is cancelled and the session ends. It cannot be resumed; it can be forked.</p>`,
    act: 'Stop for good',
    kind: 'danger',
    field: { label: 'Why (optional, stored in the log)' },
    run: async (reason) => {
      await send(id, { type: 'stop', ...(reason.trim() && { reason: reason.trim() }) }, once);
      note('The session stops');
    },
  });
}

/** A message to a node's agent, or to all that listen. */
export function steer(id, node) {
  const once = key();
  ask({
    title: node ? `Steer ${node}` : 'Send a message',
    what: html`<p>${node ? 'The message reaches the agent of this node as its program allows: in its turn, or as its next turn.' : 'The message reaches everything in the session that listens for one.'}</p>`,
    act: 'Send',
    field: { label: 'Message', isNeeded: true, hint: 'Ctrl+Enter sends' },
    run: async (content) => {
      await send(id, { type: 'send', content, ...(node && { node }) }, once);
      note('The message is on its way');
    },
  });
}

export function retry(id, node) {
  const once = key();
  ask({
    title: `Retry ${node}?`,
    what: html`<p>The session resumes, and this node runs again with a new attempt. What is complete stays.</p>`,
    act: 'Retry',
    run: async () => {
      await send(id, { type: 'retry', node }, once);
      note(`${node} runs again`);
    },
  });
}

export function fork(id, at, input) {
  const once = key();
  const before = JSON.stringify(input ?? {}, null, 2);
  ask({
    title: typeof at === 'number' ? `Fork from event ${at}?` : `Fork from ${at}?`,
    what: html`<p>A new session starts with everything that was complete ${typeof at === 'number' ? `at event ${at}` : html`before <b>${at}</b>`}, and runs the rest. This session stays as it is.</p>`,
    act: 'Fork',
    field: { label: 'Input of the new session, as JSON', value: before },
    run: async (text) => {
      /** @type {any} */
      let changed;
      try {
        changed = JSON.parse(text || '{}');
      } catch (error) {
        throw new Error(`The input is not JSON: ${error.message}`);
      }
      const isChanged = JSON.stringify(changed) !== JSON.stringify(input ?? {});
      const { sessionId } = await post(`${base(id)}/fork`, { at, ...(isChanged && { input: changed }), key: once });
      note('The fork has started');
      go(href(['s', sessionId, 'graph']));
    },
  });
}
