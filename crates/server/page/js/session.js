// One session as the page shows it: its state now, or as it was at a sequence number. The page folds nothing: a state
// and the patches of it come from the server.

import { batch, computed, effect, perFrame, signal, useEffect, useMemo, useRef, useState } from './dom.js';
import { applyPatch } from './file.js';
import { route, setQuery } from './route.js';
import { file, get, Problem } from './source.js';
import { sessions } from './lists.js';
import { connection, follow, refollow } from './socket.js';

/** @param {string} id */
export const base = (id) => `/sessions/${encodeURIComponent(id)}`;

/** A session that is shown. @param {string} id */
function open(id) {
  /** The state of the newest event. */
  const live = signal(/** @type {any} */ (null));
  /** @type {{ value: any }} the state at `at` */
  const past = signal(null);
  /** @type {{ value: Error | null }} */
  const error = signal(null);
  /** Counts the changes: a state is changed in place, because it may have many nodes. */
  const revision = signal(0);
  const graph = signal(/** @type {any} */ (null));
  const lastSeq = computed(() => {
    revision.value;
    return Math.max(live.value?.seq ?? 0, live.value?.session?.lastSeq ?? 0);
  });
  // What is no number of an event means the newest.
  const at = computed(() => {
    const value = route.value.path[1] === id ? Number(route.value.query.at) : 0;
    const isEvent = Number.isInteger(value) && value > 0 && value <= (lastSeq.value || Infinity);
    return isEvent ? value : null;
  });
  const shown = computed(() => {
    revision.value;
    return at.value ? (past.value ?? live.value) : live.value;
  });
  /** @type {Set<string>} */
  const opened = new Set();
  const openNames = () => [...opened].join(',');
  /** The frames whose nodes `past` has. */
  let openInPast = '';

  /** @type {any[]} */
  let patches = [];
  const apply = () => {
    const waiting = patches;
    patches = [];
    if (!live.value) return;
    // A new object says that something changed; its many nodes are changed in place.
    const state = { ...live.value };
    for (const patch of waiting) applyPatch(state, patch);
    batch(() => {
      live.value = state;
      revision.value += 1;
    });
  };
  const flush = perFrame(apply);
  /** @param {Loose} message */
  const onMessage = (message) => {
    if (message.state) {
      patches = [];
      batch(() => {
        live.value = message.state;
        error.value = null;
        revision.value += 1;
      });
    } else if (message.patch) {
      patches.push(message.patch);
      // A tab that is not seen has no frames, and would keep them for ever.
      if (document.hidden && patches.length >= 100) apply();
      else flush();
    } else if (message.end) {
      hasEnded = true;
    } else if (message.problem) {
      error.value = new Problem(message.problem);
    } else if (message.lagged) {
      reload();
    }
  };
  // A session that has ended is followed again when it is resumed, continued by another one or deleted: of that no event tells.
  let hasEnded = false;
  /** @type {string | undefined} */
  let seen;
  const watch = effect(() => {
    const all = sessions.value;
    if (!hasEnded || !all || !live.value) return;
    const entry = all.find((one) => one.sessionId === id);
    const by = entry ? entry.continuedBy : 'deleted';
    // Once for each answer: one that is not among those that are read may still be there.
    const isOther = by !== seen && by !== live.value.session.continuedBy;
    seen = by;
    if (!isOther && !(entry?.lastSeq > live.value.seq)) return;
    hasEnded = false;
    refollow(id);
  });
  async function reload() {
    if (connection.value === 'live') return refollow(id);
    try {
      const state = await get(base(id));
      batch(() => {
        if (!live.value || state.seq >= live.value.seq) live.value = state;
        error.value = null;
        revision.value += 1;
      });
    } catch (failure) {
      if (!live.value) error.value = failure;
    }
  }
  async function loadGraph() {
    try {
      // The states of the nodes are in the state, so the graph comes before the log is read.
      graph.value = await get(`${base(id)}/graph`, { results: false });
    } catch (failure) {
      graph.value = { failure };
    }
  }

  // A state of the past: one request at a time, the newest wish next.
  let busy = false;
  const stop = effect(() => {
    const wanted = at.value;
    if (wanted && !busy) fetchPast(wanted);
  });
  /** @param {number} seq */
  async function fetchPast(seq) {
    busy = true;
    const open = openNames();
    try {
      const from = past.value ?? (live.value && { ...live.value, nodes: { ...live.value.nodes } });
      // A patch has only what changes of the nodes of a frame.
      if (file || !from || open !== openInPast) past.value = await get(base(id), { at: seq, open });
      else past.value = applyPatch({ ...from }, await get(`${base(id)}/patch`, { from: from.seq, at: seq, open }));
      openInPast = open;
    } catch (failure) {
      error.value = live.value ? null : failure;
      // What is shown is the state at another event: the address names it again.
      if (live.value && at.value === seq) setQuery({ at: past.value?.seq });
    }
    busy = false;
    const wanted = at.value;
    if (wanted && (wanted !== seq || open !== openNames())) fetchPast(wanted);
  }

  // The socket brings the state; without one it is read. A graph that a lost server did not give is asked for again.
  const spare = effect(() => {
    if (connection.value === 'live' && graph.peek()?.failure) loadGraph();
    if (connection.value === 'file' || (connection.value === 'stale' && !live.peek())) reload();
  });
  const leave = follow(id, { from: () => undefined, open: () => [...opened], onMessage });
  loadGraph();
  return {
    id,
    at,
    shown,
    live,
    lastSeq,
    revision,
    error,
    graph,
    reload,
    loadGraph,
    /** Frames that are opened are part of what is followed. @param {string} frame */
    openFrame(frame) {
      if (opened.has(frame) || file) return;
      opened.add(frame);
      // The server opens no more.
      if (opened.size > 100) opened.delete(opened.values().next().value ?? '');
      refollow(id);
      if (at.value && !busy) fetchPast(at.value);
    },
    close() {
      stop();
      watch();
      spare();
      leave();
    },
  };
}

/** @typedef {ReturnType<typeof open>} Session */

/** @type {Session | null} */
let current = null;

/** The session of the view, opened once. @param {string} id */
export function sessionOf(id) {
  if (current?.id !== id) {
    current?.close();
    current = open(id);
  }
  return /** @type {Session} */ (current);
}

/** Ends following when no view shows a session any more. */
export function closeSession() {
  current?.close();
  current = null;
}

/** The node that is chosen. */
export const chosen = computed(() => route.value.query.node ?? '');

/** @param {string} path */
export const choose = (path) => setQuery({ node: path, attempt: undefined });

/** Reads again when the server is back. @param {() => void} read */
export function useReturn(read) {
  const isLost = connection.value === 'stale';
  const was = useRef(isLost);
  useEffect(() => {
    if (was.current && !isLost) read();
    was.current = isLost;
  }, [isLost]);
}

/**
 * A resource of the server, read again when its address changes, and now and then while the session runs.
 * @param {string} path @param {Record<string, any>} query @param {number} tick changes when the answer may have changed
 */
export function useResource(path, query, tick = 0) {
  const address = JSON.stringify([path, query]);
  const [answer, setAnswer] = useState(/** @type {{ address: string, data?: any, error?: Error }} */ ({ address: '' }));
  const state = useMemo(() => ({ tick: -1, timer: 0, controller: new AbortController(), gone: false }), [address]);
  const read = async () => {
    state.tick = tick;
    try {
      const data = await get(path, query, state.controller.signal);
      if (!state.gone) setAnswer({ address, data });
    } catch (error) {
      if (!state.gone) setAnswer((old) => ({ address, data: old.address === address ? old.data : undefined, error: error }));
    }
  };
  useEffect(() => {
    read();
    return () => {
      state.gone = true;
      clearTimeout(state.timer);
      state.controller.abort();
    };
  }, [address]);
  useEffect(() => {
    if (tick !== state.tick && !state.timer) {
      state.timer = setTimeout(() => {
        state.timer = 0;
        if (!state.gone) read();
      }, 500);
    }
  }, [tick]);
  useReturn(read);
  const fresh = answer.address === address;
  return { data: answer.data, isLoading: !fresh, error: fresh ? answer.error : undefined, reload: read };
}

/** What the time and the version of a session's state are for a resource of it. @param {Session} session */
export function moment(session) {
  return { at: session.at.value ?? undefined, tick: session.at.value ? 0 : session.revision.value };
}

/** The event of the past that is shown: of a long session a file has only some. @param {Session} session @param {State} state */
export const shownAt = (session, state) => (file ? state.seq : (session.at.value ?? state.seq));

/** Whether what is shown changes no more: a moment of the past, a file, or a session that cannot be followed. @param {Session} session */
export const isPast = (session) => !!file || !!session.at.value || !!session.error.value;

/** Whether commands can be sent: to the present, and while there is a server. @param {Session} session */
export const isLive = (session) => !isPast(session) && connection.value !== 'stale';

/**
 * The nodes in the order of the drawing, those of frames left out.
 * @param {any} graph @returns {any[]}
 */
export function nodesOf(graph) {
  /** @type {any[]} */
  const all = [];
  /** @param {Api.Group | null | undefined} group @param {number} depth */
  const walk = (group, depth) => {
    for (const node of group?.nodes ?? []) {
      all.push({ ...node, depth });
      if (node.frames?.body) walk(node.frames.body, depth + 1);
    }
  };
  walk(graph, 0);
  return all;
}
