// What the page can ask of a session. Each asks once and says what it will do.

import { html } from './dom.js';
import { ask, note } from './parts.js';
import { base } from './session.js';
import { get, poster } from './source.js';
import { readJson } from './format.js';
import { go, href } from './route.js';

/** What sends commands to a session, one of each dialog. @param {string} id */
export function sender(id) {
  const post = poster();
  return (/** @type {Loose} */ command) => post(`${base(id)}/commands`, { command });
}

/** @param {string} id @param {string} flow */
export function pause(id, flow) {
  const send = sender(id);
  ask({
    title: `Pause ${flow}?`,
    session: id,
    what: html`<p>What runs is cancelled and starts again after the pause; an agent resumes its conversation. What is complete stays.</p>`,
    act: 'Pause',
    run: async () => {
      await send({ type: 'pause' });
      note('The session pauses');
    },
  });
}

/** @param {string} id @param {string} flow @param {string} [limit] what is used up of a budget */
export function resume(id, flow, limit) {
  const send = sender(id);
  ask({
    title: `Resume ${flow}?`,
    session: id,
    what: html`<p>What is unfinished runs again; what is complete is neither run nor charged again. An ended session is continued by a new one. The flow is the one that the session was started with; <code>inspan resume --edited</code> takes the file as it is now.</p>
      ${limit && html`<p>A budget is used up. The new limit of:</p>`}`,
    act: 'Resume',
    ...(limit && { numbers: limit.split(',') }),
    run: async (_, budget) => {
      if (Object.values(budget).includes(0)) throw new Error('A limit is above 0.');
      const { sessionId } = await send({ type: 'resume', ...(limit && { budget }) });
      note('The session resumes');
      follow(id, sessionId);
    },
  });
}

/** @param {string} id @param {string} flow */
export function stop(id, flow) {
  const send = sender(id);
  ask({
    title: `Stop ${flow} for good?`,
    session: id,
    what: html`<p>What runs is cancelled and the session ends. Resume then continues it in a new session that reuses what is complete.</p>`,
    act: 'Stop for good',
    kind: 'danger',
    field: { label: 'Why (optional, stored in the log)' },
    run: async (reason) => {
      await send({ type: 'stop', ...(reason.trim() && { reason: reason.trim() }) });
      note('The session stops');
    },
  });
}

/** Shows the session in which a command took effect, if it is another one. @param {string} id @param {string} [other] */
function follow(id, other) {
  if (other && other !== id) go(href(['s', other, 'graph']));
}

/** The newest agent run of a node: a node within frames has one in each. @param {string} id @param {string} node @returns {Promise<{ run?: string, node?: string }>} */
async function receiver(id, node) {
  const { items } = await get(`${base(id)}/stream`, { node, limit: 50 });
  const run = items.findLast((/** @type {Loose} */ item) => item.runId)?.runId;
  return run ? { run } : { node };
}

/** A message to a node's agent, or to all that listen. @param {string} id @param {string} node */
export function steer(id, node) {
  const send = sender(id);
  ask({
    title: node ? `Steer ${node}` : 'Send a message',
    session: id,
    what: html`<p>${node ? 'The message reaches this node’s agent as its program allows: in its turn, or as its next turn.' : 'All in the session that listen for a message get it.'}</p>`,
    act: 'Send',
    field: { label: 'Message', isNeeded: true, hint: 'Ctrl+Enter sends' },
    run: async (content) => {
      await send({ type: 'send', content, ...(node && (await receiver(id, node))) });
      note('The message is on its way');
    },
  });
}

/** @param {string} id @param {string} node */
export function close(id, node) {
  const send = sender(id);
  ask({
    title: `End the conversation of ${node}?`,
    session: id,
    what: html`<p>The agent takes no more messages. It ends after its turn; the flow continues.</p>`,
    act: 'End it',
    run: async () => {
      const { run } = await receiver(id, node);
      await send({ type: 'close', run: run ?? node });
      note('The conversation ends');
    },
  });
}

/** @param {string} id @param {string} node */
export function retry(id, node) {
  const send = sender(id);
  ask({
    title: `Retry ${node}?`,
    session: id,
    what: html`<p>This node and all that depends on it run again, and the rest is reused, in a new session that continues this one.</p>`,
    act: 'Retry',
    run: async () => {
      const { sessionId } = await send({ type: 'retry', node });
      note(`${node} runs again`);
      follow(id, sessionId);
    },
  });
}

/** @param {string} id @param {number | string} at @param {Loose} input */
export function fork(id, at, input) {
  const post = poster();
  const before = JSON.stringify(input ?? {}, null, 2);
  ask({
    title: typeof at === 'number' ? `Fork from event ${at}?` : `Fork from ${at}?`,
    session: id,
    what: html`<p>A new session starts with everything that was complete ${typeof at === 'number' ? `at event ${at}` : html`before <b>${at}</b>`}, and runs the rest. This session stays as it is.</p>`,
    act: 'Fork',
    field: { label: 'Input of the new session, as JSON', value: before },
    run: async (text) => {
      let all = {};
      try {
        all = readJson(text || '{}');
      } catch (error) {
        throw new Error(`The input is not JSON: ${error.message}`);
      }
      if (!all || typeof all !== 'object' || Array.isArray(all)) throw new Error('The input is an object: { "name": value }.');
      const gone = Object.keys(input ?? {}).find((name) => !Object.hasOwn(all, name));
      if (gone !== undefined) throw new Error(`“${gone}” is missing. A fork keeps each value that is not changed, so write it, or another value for it.`);
      const isNew = (/** @type {[string, unknown]} */ [name, value]) => JSON.stringify(value) !== JSON.stringify(input?.[name]);
      const changed = Object.fromEntries(Object.entries(all).filter(isNew));
      const { sessionId } = await post(`${base(id)}/fork`, { at, input: changed });
      note('The fork has started');
      go(href(['s', sessionId, 'graph']));
    },
  });
}
