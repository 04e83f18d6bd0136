// The data of an exported file: the answers that the server would give, written into the document by
// `inspan export --html`. A state of the past is made of the first state and the patches up to it.

import { own, readJson } from './format.js';

/**
 * @typedef {object} FileData
 * @property {string} session
 * @property {any} meta
 * @property {any} start the state before the first patch
 * @property {any[]} patches
 * @property {any} graph @property {any} timeline @property {any} cost
 * @property {Record<string, any>} streams by node
 * @property {Record<string, any>} why by node; that of the session has an empty name
 * @property {Record<string, Record<string, Api.FramePage>>} frames by node: `all`, and of many also those of each status
 * @property {any[]} events
 */

/** Applies what differs: set replaces, null takes away. @param {State} state @param {Api.PagePatch} patch */
export function applyPatch(state, patch) {
  const { set, gone, edges, ...head } = patch;
  for (const [key, value] of Object.entries(head)) {
    if (value === null) delete state[key];
    else state[key] = value;
  }
  Object.assign(state.nodes, set);
  for (const path of gone ?? []) delete state.nodes[path];
  if (edges) {
    const ends = (/** @type {Loose} */ edge) => `${edge.from}\n${edge.to}\n${edge.on}`;
    const fresh = new Set(edges.map(ends));
    state.edges = [...(state.edges ?? []).filter((old) => !fresh.has(ends(old))), ...edges];
  }
  return state;
}

/** A file has the streams and frames of at most so many nodes: those of its timeline and those outside frames. */
const MOST = 1000;

/** @param {FileData} data */
function reader(data) {
  const last = data.patches.at(-1)?.seq ?? data.start.seq;
  // Of a long session the file has not every moment: this is the one before.
  const momentBefore = (/** @type {number} */ at) => data.patches.findLast((patch) => patch.seq <= at)?.seq ?? data.start.seq;
  const isCut = data.timeline.omitted > 0 || Object.keys(data.streams).length >= MOST;
  const missing = () => new Error('This file does not have it for this node: `inspan serve` shows it.');
  /** @param {number} at */
  const stateAt = (at) => {
    const state = { ...data.start, nodes: { ...data.start.nodes } };
    for (const patch of data.patches) {
      if (patch.seq > at) break;
      applyPatch(state, patch);
    }
    return state;
  };
  /** @param {Loose} query */
  const events = (query) => {
    const types = query.types ? String(query.types).split(',') : null;
    const matches = (/** @type {Loose} */ envelope) =>
      (!types || types.some((type) => matchesType(type, envelope.event.type))) &&
      (!query.node || envelope.context.task === query.node) &&
      envelope.seq >= (query.from ?? 0);
    return data.events.filter(matches).slice(0, query.limit ?? Infinity);
  };
  /** @param {string} path @param {Loose} query */
  const get = async (path, query) => {
    if (path === '/meta') return data.meta;
    if (path === '/sessions') return [stateAt(last).session];
    if (path === '/inbox') return [];
    const part = path.split('/')[3] ?? '';
    switch (part) {
      case '':
        return stateAt(query.at ?? last);
      case 'sums':
        // The graph has them as they are at the end.
        return {};
      case 'graph':
      case 'timeline':
      case 'cost':
        return data[part];
      case 'stream': {
        const found = own(data.streams, query.node);
        if (!found && isCut) throw missing();
        const stream = found ?? { items: [] };
        const until = query.at ? momentBefore(query.at) : last;
        const isWanted = (/** @type {Loose} */ item) => item.seq <= until && (!query.pass || item.pass === query.pass) && (!query.attempt || item.attempt === query.attempt);
        const items = stream.items.filter(isWanted);
        return { total: items.length, attempts: stream.attempts, items };
      }
      case 'frames': {
        const { from = 0, limit, status } = query;
        const kept = own(data.frames, query.node);
        if (!kept && isCut) throw missing();
        const pages = kept ?? { all: { total: 0, frames: [] } };
        // All are there, unless there are pages by status.
        const isWhole = pages.all.total === pages.all.frames.length;
        const found = isWhole && status ? pages.all.frames.filter((/** @type {Loose} */ frame) => frame.status === status) : pages[status || 'all'].frames;
        const total = isWhole ? found.length : pages[status || 'all'].total;
        return { total, held: found.length, frames: found.slice(from, from + limit) };
      }
      case 'why': {
        const found = own(data.why, query.node ?? '');
        if (!found) throw missing();
        return found;
      }
      default:
        throw new Error('This file does not have that: it holds one session.');
    }
  };
  return { session: data.session, get, events };
}

/** Whether an event's type is meant by a filter: `agent:*` means the family. @param {string} filter @param {string} type */
export function matchesType(filter, type) {
  return filter.endsWith('*') ? type.startsWith(filter.slice(0, -1)) : filter === type;
}

/** The data of this document, if it is an exported file. */
export function openFile() {
  const element = document.getElementById('data');
  return element ? reader(readJson(element.textContent ?? '')) : null;
}
